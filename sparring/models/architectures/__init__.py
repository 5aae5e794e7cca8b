"""The families of models that Sparring trains, and how each family is loaded, adapted and trained."""
