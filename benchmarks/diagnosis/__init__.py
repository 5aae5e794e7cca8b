"""Runs with a fault planted, and runs that only look like it: does the diagnosis name them, and does its change help?"""
