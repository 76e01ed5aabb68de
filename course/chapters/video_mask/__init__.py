"""Video chapter 2: who sees whom in a stream, as a mask in training and as a ring of keys and values in
serving."""
