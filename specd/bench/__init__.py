"""Measuring: what speculation costs and gains."""
