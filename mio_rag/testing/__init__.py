"""For authors of back ends and controllers: suites that tell whether theirs keep what mio-rag promises."""
