"""The commands of `seglog`, one file a group. What only one needs, it imports when it runs."""
