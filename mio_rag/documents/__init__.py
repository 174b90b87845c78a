"""Documents as people have them: files of many formats -> blocks -> passages of units with their places.

A document has one text: its blocks, a line each. Passages and units are spans of it, and so is what they need
to be understood: the heading above, the header of a table, what leads into a list.
"""
