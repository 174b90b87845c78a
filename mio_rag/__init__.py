"""mio-rag"""
