"""Where passages and questions come from: one layout on disk and the bundled demo, folders of documents,
public question sets in their published formats.
"""
