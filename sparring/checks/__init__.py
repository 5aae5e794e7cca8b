"""What is wrong with a recipe, its environment, data, reward and budgets, found before anything is trained."""
