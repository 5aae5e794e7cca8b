"""The families of models that Sparring trains, and the way each is loaded, adapted and trained."""
