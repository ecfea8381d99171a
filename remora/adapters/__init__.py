"""remora under other libraries' names and interfaces: one small module each, without state.

- `openai_agents`: a session of the OpenAI Agents SDK (extra ``openai-agents``).
- `langchain`: a chat message history of LangChain (extra ``langchain``).
- `llama_index`, `massgen`, `muxi`, `synaptic`: facades with the names of these libraries' memories;
  they need no extra.
- `protocol`: the interface that an agent needs of a memory.
"""
