"""remora under other libraries' names and protocols.

One small module each, without state of its own.

- `openai_agents`: a session of the OpenAI Agents SDK (extra ``openai-agents``).
- `langchain`: a chat message history of LangChain (extra ``langchain``).
- `llama_index`, `massgen`, `muxi`, `synaptic`: facades with the names of these libraries' memories;
    they need no extra.
- `protocol`: what an agent asks of a memory.
"""
