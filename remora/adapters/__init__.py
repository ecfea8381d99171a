"""remora under other libraries' names and interfaces: one small module each, without state.

- `openai_agents`: a session of the OpenAI Agents SDK (extra ``openai-agents``).
- `langchain`: a chat message history of LangChain (extra ``langchain``).
- `langchain_agents`: a middleware and tools for LangChain's agents (extra ``langchain-agents``).
- `langgraph`, `langgraph_checkpoints`: a store and a checkpointer of LangGraph (extra
  ``langgraph``).
- `agent_framework`: a history and a context provider of the Agent
  Framework, and its messages (extra ``agent-framework``).
- `claude_agent_sdk`: a store of the Claude Agent SDK's transcripts (extra ``claude-agent-sdk``).
- `google_adk`: session and memory services of Google's ADK, and its events
  (extra ``google-adk``).
- `llama_index_agents`: a memory for agents of LlamaIndex, a chat store, and
  its messages (extra ``llama-index``).
- `pydantic_ai`: a capability and tools for agents of Pydantic AI, and its
  messages (extra ``pydantic-ai``).
- `strands`, `strands_storage`: a session repository, a memory store and a
  storage of Strands Agents, and its messages (extra ``strands``).
- `mcp`: a server of the Model Context Protocol (extra ``mcp``).
- `llama_index`, `massgen`, `muxi`, `synaptic`: facades with the names of these libraries' memories;
  they need no extra.
- `ray`: nodes of a memory that several machines share, on a Ray cluster (extra ``ray``).
- `otel`: spans of calls and jobs, for OpenTelemetry (extra ``otel``).
- `versions`: the releases that these are tested with.
- `protocol`: the interface that an agent needs of a memory.
"""
