"""Conversations: from messages to tokens."""
