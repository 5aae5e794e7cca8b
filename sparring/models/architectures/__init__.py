"""The families of models that Sparring trains, and how each is loaded, adapted and trained."""
