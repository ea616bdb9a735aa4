"""What `gnnlab profile|stages|plan|units|infer` do, each loaded when it is called; `arguments` says what they take."""
