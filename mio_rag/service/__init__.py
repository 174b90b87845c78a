"""The service: selection and answers over HTTP, with a page to try them on (extra ``serve``)."""
