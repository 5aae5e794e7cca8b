"""A server that answers the requests of the `tinker` client with Sparring's learner and engine."""
