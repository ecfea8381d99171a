// Written by tools/typescript.py from the description of `remora http`.

import { Service, type CallOptions, type Operation } from "./service.ts";

export { RemoraError, type CallOptions, type ClientOptions } from "./service.ts";
export { follow } from "./follow.ts";
export { Turn } from "./turn.ts";

/** A message in the OpenAI chat format. */
export type ChatMessage = Record<string, unknown>;

/** Messages to add; `allow_duplicates`: add one although a message has its id. `replace`: change a message that has its id and says something else. */
export interface Append {
  messages: ChatMessage[];
  allow_duplicates?: boolean;
  replace?: boolean;
}

/** The messages' numbers and ids; `duplicate`: the request came before. */
export interface Appended {
  seqs: number[];
  ids: string[];
  duplicate: boolean;
}

/** The stream begins behind this number. */
export interface Begun {
  after: number | null;
}

/** Messages of the buffer: of a role, with these pairs in their metadata, the newest `limit`. */
export interface Buffer {
  role?: "assistant" | "developer" | "system" | "tool" | "user" | null;
  filter_metadata?: Record<string, unknown> | null;
  limit?: number | null;
}

/** A search in the buffer; `semantic`: by meaning, null for as it is configured. */
export interface BufferSearch {
  query: string;
  limit?: number;
  semantic?: boolean | null;
}

/** Messages of the buffer, oldest first. */
export interface Buffered {
  messages: Message[];
}

/** How many jobs were changed. */
export interface Changed {
  jobs: number;
}

/** How many messages left the buffer. */
export interface Cleared {
  messages: number;
}

/** The whole buffer, oldest first, and the summaries as messages, as of one moment. */
export interface Contents {
  summaries: Record<string, unknown>[];
  messages: Message[];
}

/** The text before the summaries; null for their own words. */
export interface ContentsAsked {
  summary_prefix?: string | null;
}

/** The question to recall memories for, the budget in tokens, and the message as of which it is. `override`: a conversation to show instead of the session's own. `messages`: what memory blocks are asked about instead. */
export interface ContextAsked {
  query?: string | null;
  max_tokens?: number | null;
  at?: number | null;
  override?: ChatMessage[] | null;
  messages?: ChatMessage[] | null;
}

/** Which stored message a message of a context is. */
export interface ContextEntry {
  seq: number;
  id: string;
}

/** A context for a model. `messages` are ready to send and have `tokens` tokens; `entries` says which stored message each of them is, null for what was written for the context. `pending` messages wait for their summary; `omitted` ones did not fit; `awaiting` are tool calls without a result, withheld; `orphans` are tool calls and results that lost their counterpart. `sources` says what each tier of memory gave. */
export interface ContextShown {
  messages: ChatMessage[];
  tokens: number;
  summary: string | null;
  memories: Memory[];
  sources: Sources;
  prefix_changed: boolean;
  pending: number;
  omitted: number;
  awaiting: string[];
  orphans: number;
  working: WorkingShown[];
  synopsis: Synopsis | null;
  entries: (ContextEntry | null)[];
}

/** Background work that failed too often: it runs no more until it is retried. `user` is null for that of the shared scope `scope`. `error` names the class of the last failure, and says what it means; its text is for who runs the memory (`remora jobs`). */
export interface DeadLetter {
  id: string;
  queue: string;
  user: string | null;
  session: string | null;
  scope: string | null;
  attempts: number;
  error: string;
}

/** The tenant's dead letters. */
export interface DeadLetters {
  jobs: DeadLetter[];
}

/** How many were deleted. */
export interface Deleted {
  deleted: number;
}

/** Messages to delete: by `ids`, or by `positions` in the buffer, from 0, oldest first. */
export interface Deletion {
  ids?: string[] | null;
  positions?: number[] | null;
}

/** The receipt of a deletion. */
export interface DeletionReceipt {
  deleted: number;
  missing?: string[];
  erased_by?: string | null;
}

/** It is done. */
export interface Done {
}

/** Which jobs to drop. */
export interface Dropping {
  ids: string[];
}

/** The session was erased. */
export interface Ended {
}

/** How many rows were erased: of the journal, by table, and of long-term memory. `actors` were evicted from memory, and `jobs` were cancelled. `erased_by` says when the bytes are gone from the files at the latest; null if they are gone. */
export interface Erased {
  journal: Record<string, number>;
  long_term: number;
  actors?: number;
  jobs?: number;
  erased_by?: string | null;
}

/** Messages after number `after`; without it, those that come from now on. `cursor`: the id of the last event that was received, as `Last-Event-ID` has it, instead. */
export interface Followed {
  after?: number | null;
  cursor?: string | null;
}

/** The id of the copy. */
export interface Forked {
  session: string;
}

/** The id of the copy, and which message is its newest; null for all of them. */
export interface Forking {
  session: string;
  at?: number | null;
}

/** Whom to let do what. */
export interface GrantGiven {
  to: string;
  right?: "own" | "read" | "write";
}

/** A message that a search found; scores of one search can be compared. */
export interface Hit {
  message: Message;
  score: number;
}

/** The results of a search, best first. */
export interface Hits {
  hits: Hit[];
}

/** The items' ids. */
export interface Learned {
  ids: string[];
}

/** Texts for working memory: where they come from, and for which session. */
export interface Learning {
  texts: string[];
  source?: string;
  session?: string;
}

/** A page: ids that begin with `prefix`, behind the cursor `after`, at most `limit`. */
export interface Listing {
  prefix?: string;
  order?: "name" | "newest" | "oldest";
  limit?: number;
  after?: string | null;
}

/** Whose rights to take away. */
export interface MemberNamed {
  to: string;
}

/** Each agent's right. */
export interface Members {
  members: Record<string, string>;
}

/** Something that was said before, or recorded, and was found again. */
export interface Memory {
  text: string;
  role: string;
  speaker: string;
  session: string;
  seq: number;
  created_at: string;
  score: number;
  parts: Record<string, number>;
  tokens: number;
  id?: string;
  type?: string;
  importance?: number;
  agent?: string;
  key?: string;
  metadata?: Record<string, unknown>;
  updated_at?: string | null;
  sources?: number[];
  superseded_by?: string;
}

/** Which memories; without messages unless `messages` is set. `types` are separated by commas, and decide instead of `messages`. */
export interface MemoryAsked {
  limit?: number;
  messages?: boolean;
  types?: string | null;
  order?: "created" | "importance";
  session?: string | null;
  agent?: string | null;
}

/** The changes of a memory; what is not given stays. */
export interface MemoryChange {
  content?: string | null;
  importance?: number | null;
  metadata?: Record<string, unknown> | null;
}

/** The memory; null if there is none. */
export interface MemoryFound {
  memory: Memory | null;
}

/** Memories by id. */
export interface MemoryIds {
  ids: string[];
}

/** The key of a memory, and its agent. */
export interface MemoryNamed {
  key: string;
  agent?: string | null;
}

/** A page of what was recorded: behind the cursor `after`, at most `limit`. */
export interface MemoryPageAsked {
  limit?: number;
  after?: string | null;
  types?: string[] | null;
  session?: string | null;
  agent?: string | null;
  where?: Record<string, unknown> | null;
}

/** A chat message with its envelope: id, time, metadata and number. */
export interface Message {
  role: "assistant" | "developer" | "system" | "tool" | "user";
  content?: string | Record<string, unknown>[] | null;
  name?: string | null;
  tool_calls?: ToolCall[] | null;
  tool_call_id?: string | null;
  id?: string | null;
  created_at?: string | null;
  metadata?: Record<string, unknown> | null;
  seq?: number | null;
  extra?: Record<string, unknown> | null;
}

/** Messages, oldest first; `after` asks for the next page, and is null on the last. */
export interface MessagePage {
  messages: Message[];
  after: number | null;
}

/** Some of the messages from `first` to `last`. */
export interface MessageRange {
  first: number;
  last: number;
  count: number;
}

/** Messages after number `after`, at most `limit`; `archived`: also what left the buffer. `at`: the session as it was when this message was the newest. `attachments`: with the bytes of attachments; otherwise a few words stand in their place. */
export interface Messages {
  after?: number;
  limit?: number;
  archived?: boolean;
  at?: number | null;
  attachments?: boolean;
}

/** Why a request failed. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  retry?: boolean;
  attributes?: Record<string, unknown>;
}

/** Which memories go; `wait`: answer when they are gone. */
export interface Pruning {
  keep?: number | null;
  strategy?: "age" | "fifo" | "importance" | "lru" | null;
  max_age_s?: number | null;
  types?: string[] | null;
  wait?: boolean;
}

/** A question, and how many memories at most. Only those of these `types`, of this `session`, of this `agent`, whose metadata match `where`. */
export interface Recall {
  query: string;
  limit?: number;
  types?: string[] | null;
  session?: string | null;
  agent?: string | null;
  where?: Record<string, unknown> | null;
}

/** Memories, the best first, or the oldest first where none was searched for. */
export interface Recalled {
  memories: Memory[];
}

/** Messages of a conversation that is kept elsewhere. */
export interface Recording {
  messages: ChatMessage[];
  session?: string | null;
  agent?: string | null;
}

/** A memory to store, or several: all or none; the same text is one memory. `content` is a text, or a list of texts and of objects with `content` and fields of their own. `key` names one; `replace`: another one under its key takes its place. */
export interface Remember {
  content: string | (string | Record<string, unknown>)[];
  type?: string;
  importance?: number | null;
  session?: string | null;
  agent?: string | null;
  key?: string | null;
  metadata?: Record<string, unknown> | null;
  replace?: boolean;
}

/** The memories' ids, in their order. */
export interface Remembered {
  ids: string[];
}

/** The messages of the assistant and of tools in answer to `message`. `stored` is how many replies of this turn the sender knows of: a reply that is sent again is not stored twice. */
export interface Reply {
  message: string | ChatMessage | ChatMessage[];
  reply: string | ChatMessage | ChatMessage[];
  stored?: number;
}

/** Which jobs to try again; null for all of the tenant. */
export interface Retrying {
  ids?: string[] | null;
}

/** The number of the message that is the newest afterwards. */
export interface Rewinding {
  to: number;
}

/** A session, with the number of messages and the time of the newest. `cursor` asks for those behind this one. */
export interface SessionItem {
  session: string;
  messages: number;
  last_at: string;
  cursor: string;
}

/** Sessions; `after` asks for the next page, and is null on the last. */
export interface SessionPage {
  sessions: SessionItem[];
  after: string | null;
}

/** A session in figures. */
export interface SessionStatistics {
  messages: number;
  buffered: number;
  buffered_tokens: number;
  pending: number;
  summary_tokens: number;
  summaries: SummaryFigures;
  indexed: number;
  rewritten: number;
  degraded?: MessageRange | null;
  state_keys?: number;
}

/** A page of sessions; `empty`: also those that have state and no message. */
export interface SessionsListing {
  prefix?: string;
  order?: "name" | "newest" | "oldest";
  limit?: number;
  after?: string | null;
  empty?: boolean;
}

/** Which shared memories; `types` are separated by commas. */
export interface SharedAsked {
  limit?: number;
  types?: string | null;
}

/** A question, and how many memories at most; `by`: only what this agent recorded. */
export interface SharedRecall {
  query: string;
  limit?: number;
  types?: string[] | null;
  by?: string | null;
}

/** Memories for all members: a text, or a list of texts and of objects with `content`. */
export interface Sharing {
  content: string | (string | Record<string, unknown>)[];
  type?: string;
  importance?: number | null;
}

/** The share of one tier of memory in a context. */
export interface Source {
  status: "degraded" | "failed" | "late" | "off" | "ok" | "omitted" | "pending";
  count?: number;
  detail?: string;
  degraded?: MessageRange | null;
  omitted?: number;
  omitted_tokens?: number;
  shortened?: number;
  messages?: MessageRange | null;
}

/** The status of each tier in a context: `context.sources.long_term.status`. By name as well, for logs and loops: `sources["long_term"]`, `sources["block:NAME"]`, `sources.items()`, `dict(sources)`. A type checker finds a misspelt field, not a misspelt name. */
export interface Sources {
  summary?: Source;
  recent?: Source;
  synopsis?: Source;
  working?: Source;
  long_term?: Source;
  instructions?: Source;
  blocks?: Record<string, Source>;
}

/** Values by key: those that begin with `prefix`, behind `after`, at most `limit`. */
export interface StateAsked {
  prefix?: string;
  limit?: number;
  after?: string | null;
  backward?: boolean;
}

/** Values to set and keys to delete, all or none; `versions`: what present ones must have. */
export interface StateChange {
  put?: Record<string, unknown>;
  delete?: string[];
  versions?: Record<string, number> | null;
}

/** The value; null if there is none. */
export interface StateFound {
  value: StateValue | null;
}

/** Which values to read, as of one moment. */
export interface StateKeys {
  keys: string[];
}

/** The result of a removal: there was a value, or not. */
export interface StateRemoved {
  deleted: boolean;
}

/** Values, in the order of their keys. */
export interface StateShown {
  values: StateValue[];
}

/** A value of keyed state, as it was at one moment. */
export interface StateValue {
  key: string;
  value: unknown;
  version: number;
  updated_at: string;
}

/** How often a session was summarized, and the tokens of that. */
export interface SummaryFigures {
  calls: number;
  tokens_in: number;
  tokens_out: number;
  degraded: number;
}

/** Who a user is, and what they are about: the user profile. */
export interface Synopsis {
  identity: string;
  context: string;
  state: "degraded" | "empty" | "off" | "ok" | "pending";
  job?: string;
  tokens?: number;
  detail?: string;
}

/** `refresh`: write it again. */
export interface SynopsisAsked {
  refresh?: boolean;
}

/** One tool call of an assistant message. Different calls of a conversation may share an id. */
export interface ToolCall {
  id: string;
  function: ToolFunction;
  type?: string;
  extra?: Record<string, unknown> | null;
}

/** The function that a model wants to call. */
export interface ToolFunction {
  name: string;
  arguments: string;
  extra?: Record<string, unknown> | null;
}

/** How many messages stay in the buffer at most. */
export interface Truncation {
  keep: number;
}

/** A request of the user. `query`: what to recall memories for, null for the message itself; `recall` false: for nothing. */
export interface TurnAsked {
  message: string | ChatMessage | ChatMessage[];
  query?: string | null;
  recall?: boolean;
  max_tokens?: number | null;
}

/** A turn: `answered` if its last reply is there; `replies` has those that are stored. `resumed`: the turn was begun before. `context` is null in the answer to a reply, and for a turn that was answered before; `stored` has the numbers and ids of what a reply stored. */
export interface TurnShown {
  answered: boolean;
  replies: Message[];
  context: ContextShown | null;
  resumed?: boolean;
  stored?: Appended | null;
}

/** An erasure whose rows are gone, and whose files are not rewritten yet. `since_us`: when it was first tried, in microseconds since the epoch; 0 if it never failed. */
export interface UnfinishedErasure {
  id: string;
  attempts: number;
  since_us: number;
  error: string;
}

/** Erasures of a user that are not confirmed yet; none: all that were asked for are done. */
export interface UnfinishedErasures {
  erasures: UnfinishedErasure[];
}

/** Memories and messages by id; `saved_only`: only what was remembered, not what was said. */
export interface UserDeletion {
  ids: string[];
  saved_only?: boolean;
}

/** A user, with the number of sessions and the time of the newest message. `cursor` asks for those behind this one. */
export interface UserItem {
  user: string;
  sessions: number;
  last_at: string | null;
  cursor: string;
}

/** Users; `after` asks for the next page, and is null on the last. */
export interface UserPage {
  users: UserItem[];
  after: string | null;
}

/** A user in figures. Hit rates are those of the runtime since it was opened. */
export interface UserStatistics {
  sessions: number;
  messages: number;
  tokens: number;
  summaries: number;
  memories: number;
  long_term_rows: number;
  working_items: number;
  working_bytes: number;
  pending_jobs: number;
  dead_jobs: number;
  synopsis_hit_rate: number;
  recall_hit_rate: number;
  embedding_hit_rate: number;
  state_keys?: number;
}

/** A value; `version`: what the present one must have, 0 for none, null for any. */
export interface ValueSet {
  value: unknown;
  version?: number | null;
}

/** The version that the value must have; null for any. */
export interface ValueVersion {
  version?: number | null;
}

/** The found items, best first; `tokens` is 0. */
export interface WorkingFound {
  items: WorkingShown[];
}

/** A search in working memory; `session`: only what is of this one, or of none. */
export interface WorkingSearch {
  query: string;
  limit?: number;
  session?: string | null;
}

/** An item of working memory; `created_at_us` in microseconds since the epoch. */
export interface WorkingShown {
  id: string;
  text: string;
  source: string;
  session: string;
  created_at_us: number;
  tokens: number;
  score: number;
}

const OPERATIONS = {
  listUsers: { method: "GET", path: "/v1/users", query: true, keyed: false, repeatable: true },
  listSessions: { method: "GET", path: "/v1/users/{user}/sessions", query: true, keyed: false, repeatable: true },
  forgetSession: { method: "DELETE", path: "/v1/users/{user}/sessions/{session}", query: false, keyed: false, repeatable: true },
  listMessages: { method: "GET", path: "/v1/users/{user}/sessions/{session}/messages", query: true, keyed: false, repeatable: true },
  appendMessages: { method: "POST", path: "/v1/users/{user}/sessions/{session}/messages", query: false, keyed: true, repeatable: false },
  deleteMessages: { method: "POST", path: "/v1/users/{user}/sessions/{session}/messages/delete", query: false, keyed: false, repeatable: false },
  loadContext: { method: "POST", path: "/v1/users/{user}/sessions/{session}/context", query: false, keyed: false, repeatable: true },
  beginTurn: { method: "POST", path: "/v1/users/{user}/sessions/{session}/turns", query: false, keyed: true, repeatable: false },
  replyToTurn: { method: "POST", path: "/v1/users/{user}/sessions/{session}/turns/replies", query: false, keyed: true, repeatable: false },
  clearSession: { method: "POST", path: "/v1/users/{user}/sessions/{session}/clear", query: false, keyed: false, repeatable: false },
  flushSession: { method: "POST", path: "/v1/users/{user}/sessions/{session}/flush", query: false, keyed: false, repeatable: true },
  readBuffer: { method: "POST", path: "/v1/users/{user}/sessions/{session}/buffer", query: false, keyed: false, repeatable: true },
  readContents: { method: "POST", path: "/v1/users/{user}/sessions/{session}/contents", query: false, keyed: false, repeatable: true },
  searchBuffer: { method: "POST", path: "/v1/users/{user}/sessions/{session}/buffer/search", query: false, keyed: false, repeatable: true },
  rewindSession: { method: "POST", path: "/v1/users/{user}/sessions/{session}/rewind", query: false, keyed: false, repeatable: false },
  truncateSession: { method: "POST", path: "/v1/users/{user}/sessions/{session}/truncate", query: false, keyed: false, repeatable: false },
  forkSession: { method: "POST", path: "/v1/users/{user}/sessions/{session}/fork", query: false, keyed: false, repeatable: false },
  countSession: { method: "GET", path: "/v1/users/{user}/sessions/{session}/stats", query: false, keyed: false, repeatable: true },
  forgetUser: { method: "DELETE", path: "/v1/users/{user}", query: false, keyed: false, repeatable: true },
  countUser: { method: "GET", path: "/v1/users/{user}/stats", query: false, keyed: false, repeatable: true },
  recall: { method: "POST", path: "/v1/users/{user}/recall", query: false, keyed: false, repeatable: true },
  listMemories: { method: "GET", path: "/v1/users/{user}/memories", query: true, keyed: false, repeatable: true },
  remember: { method: "POST", path: "/v1/users/{user}/memories", query: false, keyed: false, repeatable: true },
  listRemembered: { method: "POST", path: "/v1/users/{user}/memories/list", query: false, keyed: false, repeatable: true },
  findMemory: { method: "POST", path: "/v1/users/{user}/memories/find", query: false, keyed: false, repeatable: true },
  record: { method: "POST", path: "/v1/users/{user}/memories/record", query: false, keyed: false, repeatable: true },
  deleteMemories: { method: "POST", path: "/v1/users/{user}/memories/delete", query: false, keyed: false, repeatable: true },
  pruneMemories: { method: "POST", path: "/v1/users/{user}/memories/prune", query: false, keyed: false, repeatable: false },
  readMemory: { method: "GET", path: "/v1/users/{user}/memories/{memory}", query: false, keyed: false, repeatable: true },
  updateMemory: { method: "PATCH", path: "/v1/users/{user}/memories/{memory}", query: false, keyed: false, repeatable: false },
  deleteMemory: { method: "DELETE", path: "/v1/users/{user}/memories/{memory}", query: false, keyed: false, repeatable: true },
  readSynopsis: { method: "POST", path: "/v1/users/{user}/synopsis", query: false, keyed: false, repeatable: true },
  learn: { method: "POST", path: "/v1/users/{user}/working", query: false, keyed: false, repeatable: true },
  searchWorking: { method: "POST", path: "/v1/users/{user}/working/search", query: false, keyed: false, repeatable: true },
  listValuesOfSession: { method: "GET", path: "/v1/users/{user}/sessions/{session}/state", query: true, keyed: false, repeatable: true },
  changeValuesOfSession: { method: "POST", path: "/v1/users/{user}/sessions/{session}/state", query: false, keyed: false, repeatable: false },
  readValuesOfSession: { method: "POST", path: "/v1/users/{user}/sessions/{session}/state/read", query: false, keyed: false, repeatable: true },
  readValueOfSession: { method: "GET", path: "/v1/users/{user}/sessions/{session}/state/{key}", query: false, keyed: false, repeatable: true },
  setValueOfSession: { method: "PUT", path: "/v1/users/{user}/sessions/{session}/state/{key}", query: false, keyed: false, repeatable: false },
  deleteValueOfSession: { method: "DELETE", path: "/v1/users/{user}/sessions/{session}/state/{key}", query: true, keyed: false, repeatable: false },
  listValuesOfUser: { method: "GET", path: "/v1/users/{user}/state", query: true, keyed: false, repeatable: true },
  changeValuesOfUser: { method: "POST", path: "/v1/users/{user}/state", query: false, keyed: false, repeatable: false },
  readValuesOfUser: { method: "POST", path: "/v1/users/{user}/state/read", query: false, keyed: false, repeatable: true },
  readValueOfUser: { method: "GET", path: "/v1/users/{user}/state/{key}", query: false, keyed: false, repeatable: true },
  setValueOfUser: { method: "PUT", path: "/v1/users/{user}/state/{key}", query: false, keyed: false, repeatable: false },
  deleteValueOfUser: { method: "DELETE", path: "/v1/users/{user}/state/{key}", query: true, keyed: false, repeatable: false },
  forgetScope: { method: "DELETE", path: "/v1/shared/{scope}/as/{agent}", query: false, keyed: false, repeatable: true },
  rememberShared: { method: "POST", path: "/v1/shared/{scope}/as/{agent}/memories", query: false, keyed: false, repeatable: true },
  listShared: { method: "GET", path: "/v1/shared/{scope}/as/{agent}/memories", query: true, keyed: false, repeatable: true },
  recallShared: { method: "POST", path: "/v1/shared/{scope}/as/{agent}/recall", query: false, keyed: false, repeatable: true },
  deleteShared: { method: "POST", path: "/v1/shared/{scope}/as/{agent}/memories/delete", query: false, keyed: false, repeatable: true },
  readShared: { method: "GET", path: "/v1/shared/{scope}/as/{agent}/memories/{memory}", query: false, keyed: false, repeatable: true },
  updateShared: { method: "PATCH", path: "/v1/shared/{scope}/as/{agent}/memories/{memory}", query: false, keyed: false, repeatable: false },
  listMembers: { method: "GET", path: "/v1/shared/{scope}/as/{agent}/members", query: false, keyed: false, repeatable: true },
  claimScope: { method: "POST", path: "/v1/shared/{scope}/as/{agent}/claim", query: false, keyed: false, repeatable: true },
  grantRight: { method: "POST", path: "/v1/shared/{scope}/as/{agent}/grant", query: false, keyed: false, repeatable: false },
  revokeRight: { method: "POST", path: "/v1/shared/{scope}/as/{agent}/revoke", query: false, keyed: false, repeatable: false },
  listDeadLetters: { method: "GET", path: "/v1/dead-letters", query: false, keyed: false, repeatable: true },
  retryDeadLetters: { method: "POST", path: "/v1/dead-letters/retry", query: false, keyed: false, repeatable: false },
  dropDeadLetters: { method: "POST", path: "/v1/dead-letters/drop", query: false, keyed: false, repeatable: false },
  listErasures: { method: "GET", path: "/v1/users/{user}/erasures", query: false, keyed: false, repeatable: true },
} satisfies Record<string, Operation>;

/** A memory that `remora http` serves. Ids of users and sessions are in `names`. */
export class Client extends Service {
  /** List users. */
  listUsers(given: Listing = {}, options: CallOptions = {}): Promise<UserPage> {
    return this.call(OPERATIONS.listUsers, {}, given, options);
  }

  /** List a user's sessions. */
  listSessions(names: { user: string }, given: SessionsListing = {}, options: CallOptions = {}): Promise<SessionPage> {
    return this.call(OPERATIONS.listSessions, names, given, options);
  }

  /** Erase a session. */
  forgetSession(names: { user: string; session: string }, options: CallOptions = {}): Promise<Erased> {
    return this.call(OPERATIONS.forgetSession, names, undefined, options);
  }

  /** Read a session's messages. */
  listMessages(names: { user: string; session: string }, given: Messages = {}, options: CallOptions = {}): Promise<MessagePage> {
    return this.call(OPERATIONS.listMessages, names, given, options);
  }

  /** Append messages: all are durable, or none. */
  appendMessages(names: { user: string; session: string }, given: Append, options: CallOptions = {}): Promise<Appended> {
    return this.call(OPERATIONS.appendMessages, names, given, options);
  }

  /** Delete messages, in the buffer or out of it. */
  deleteMessages(names: { user: string; session: string }, given: Deletion = {}, options: CallOptions = {}): Promise<DeletionReceipt> {
    return this.call(OPERATIONS.deleteMessages, names, given, options);
  }

  /** Load what a model should see. */
  loadContext(names: { user: string; session: string }, given: ContextAsked = {}, options: CallOptions = {}): Promise<ContextShown> {
    return this.call(OPERATIONS.loadContext, names, given, options);
  }

  /** Begin or resume a turn: store the user's message, load the context. */
  beginTurn(names: { user: string; session: string }, given: TurnAsked, options: CallOptions & { key: string }): Promise<TurnShown> {
    return this.call(OPERATIONS.beginTurn, names, given, options);
  }

  /** Store a reply of a turn. */
  replyToTurn(names: { user: string; session: string }, given: Reply, options: CallOptions & { key: string }): Promise<TurnShown> {
    return this.call(OPERATIONS.replyToTurn, names, given, options);
  }

  /** Empty the buffer and the summary. */
  clearSession(names: { user: string; session: string }, options: CallOptions = {}): Promise<Cleared> {
    return this.call(OPERATIONS.clearSession, names, undefined, options);
  }

  /** Index what long-term memory does not have yet. */
  flushSession(names: { user: string; session: string }, options: CallOptions = {}): Promise<Cleared> {
    return this.call(OPERATIONS.flushSession, names, undefined, options);
  }

  /** Read the messages in the buffer. */
  readBuffer(names: { user: string; session: string }, given: Buffer = {}, options: CallOptions = {}): Promise<Buffered> {
    return this.call(OPERATIONS.readBuffer, names, given, options);
  }

  /** Read the whole buffer, and the summaries as messages. */
  readContents(names: { user: string; session: string }, given: ContentsAsked = {}, options: CallOptions = {}): Promise<Contents> {
    return this.call(OPERATIONS.readContents, names, given, options);
  }

  /** Search the buffer. */
  searchBuffer(names: { user: string; session: string }, given: BufferSearch, options: CallOptions = {}): Promise<Hits> {
    return this.call(OPERATIONS.searchBuffer, names, given, options);
  }

  /** Go back to an earlier message. */
  rewindSession(names: { user: string; session: string }, given: Rewinding, options: CallOptions = {}): Promise<Deleted> {
    return this.call(OPERATIONS.rewindSession, names, given, options);
  }

  /** Keep the newest messages in the buffer. */
  truncateSession(names: { user: string; session: string }, given: Truncation, options: CallOptions = {}): Promise<Cleared> {
    return this.call(OPERATIONS.truncateSession, names, given, options);
  }

  /** Begin another session as a copy. */
  forkSession(names: { user: string; session: string }, given: Forking, options: CallOptions = {}): Promise<Forked> {
    return this.call(OPERATIONS.forkSession, names, given, options);
  }

  /** Count messages, tokens, summaries. */
  countSession(names: { user: string; session: string }, options: CallOptions = {}): Promise<SessionStatistics> {
    return this.call(OPERATIONS.countSession, names, undefined, options);
  }

  /** Erase a user. */
  forgetUser(names: { user: string }, options: CallOptions = {}): Promise<Erased> {
    return this.call(OPERATIONS.forgetUser, names, undefined, options);
  }

  /** Count what is stored of a user. */
  countUser(names: { user: string }, options: CallOptions = {}): Promise<UserStatistics> {
    return this.call(OPERATIONS.countUser, names, undefined, options);
  }

  /** Search what was said or remembered. */
  recall(names: { user: string }, given: Recall, options: CallOptions = {}): Promise<Recalled> {
    return this.call(OPERATIONS.recall, names, given, options);
  }

  /** List a user's memories. */
  listMemories(names: { user: string }, given: MemoryAsked = {}, options: CallOptions = {}): Promise<Recalled> {
    return this.call(OPERATIONS.listMemories, names, given, options);
  }

  /** Store a memory, or several. */
  remember(names: { user: string }, given: Remember, options: CallOptions = {}): Promise<Remembered> {
    return this.call(OPERATIONS.remember, names, given, options);
  }

  /** List what was recorded, page by page. */
  listRemembered(names: { user: string }, given: MemoryPageAsked = {}, options: CallOptions = {}): Promise<Recalled> {
    return this.call(OPERATIONS.listRemembered, names, given, options);
  }

  /** Read a memory by its key. */
  findMemory(names: { user: string }, given: MemoryNamed, options: CallOptions = {}): Promise<MemoryFound> {
    return this.call(OPERATIONS.findMemory, names, given, options);
  }

  /** Remember what was said in a conversation kept elsewhere. */
  record(names: { user: string }, given: Recording, options: CallOptions = {}): Promise<Remembered> {
    return this.call(OPERATIONS.record, names, given, options);
  }

  /** Delete memories, and messages of any session. */
  deleteMemories(names: { user: string }, given: UserDeletion, options: CallOptions = {}): Promise<DeletionReceipt> {
    return this.call(OPERATIONS.deleteMemories, names, given, options);
  }

  /** Remove the least important rows of long-term memory. */
  pruneMemories(names: { user: string }, given: Pruning = {}, options: CallOptions = {}): Promise<Done> {
    return this.call(OPERATIONS.pruneMemories, names, given, options);
  }

  /** Read a memory. */
  readMemory(names: { user: string; memory: string }, options: CallOptions = {}): Promise<MemoryFound> {
    return this.call(OPERATIONS.readMemory, names, undefined, options);
  }

  /** Change a memory. */
  updateMemory(names: { user: string; memory: string }, given: MemoryChange = {}, options: CallOptions = {}): Promise<Memory> {
    return this.call(OPERATIONS.updateMemory, names, given, options);
  }

  /** Delete a memory or a message. */
  deleteMemory(names: { user: string; memory: string }, options: CallOptions = {}): Promise<DeletionReceipt> {
    return this.call(OPERATIONS.deleteMemory, names, undefined, options);
  }

  /** Read who the user is. */
  readSynopsis(names: { user: string }, given: SynopsisAsked = {}, options: CallOptions = {}): Promise<Synopsis> {
    return this.call(OPERATIONS.readSynopsis, names, given, options);
  }

  /** Note texts in working memory. */
  learn(names: { user: string }, given: Learning, options: CallOptions = {}): Promise<Learned> {
    return this.call(OPERATIONS.learn, names, given, options);
  }

  /** Search working memory. */
  searchWorking(names: { user: string }, given: WorkingSearch, options: CallOptions = {}): Promise<WorkingFound> {
    return this.call(OPERATIONS.searchWorking, names, given, options);
  }

  /** List keyed state of a session. */
  listValuesOfSession(names: { user: string; session: string }, given: StateAsked = {}, options: CallOptions = {}): Promise<StateShown> {
    return this.call(OPERATIONS.listValuesOfSession, names, given, options);
  }

  /** Set and delete several values of a session, all or none. */
  changeValuesOfSession(names: { user: string; session: string }, given: StateChange = {}, options: CallOptions = {}): Promise<StateShown> {
    return this.call(OPERATIONS.changeValuesOfSession, names, given, options);
  }

  /** Read several values of a session. */
  readValuesOfSession(names: { user: string; session: string }, given: StateKeys, options: CallOptions = {}): Promise<StateShown> {
    return this.call(OPERATIONS.readValuesOfSession, names, given, options);
  }

  /** Read a value of a session. */
  readValueOfSession(names: { user: string; session: string; key: string }, options: CallOptions = {}): Promise<StateFound> {
    return this.call(OPERATIONS.readValueOfSession, names, undefined, options);
  }

  /** Set a value of a session. */
  setValueOfSession(names: { user: string; session: string; key: string }, given: ValueSet, options: CallOptions = {}): Promise<StateFound> {
    return this.call(OPERATIONS.setValueOfSession, names, given, options);
  }

  /** Delete a value of a session. */
  deleteValueOfSession(names: { user: string; session: string; key: string }, given: ValueVersion = {}, options: CallOptions = {}): Promise<StateRemoved> {
    return this.call(OPERATIONS.deleteValueOfSession, names, given, options);
  }

  /** List keyed state of a user. */
  listValuesOfUser(names: { user: string }, given: StateAsked = {}, options: CallOptions = {}): Promise<StateShown> {
    return this.call(OPERATIONS.listValuesOfUser, names, given, options);
  }

  /** Set and delete several values of a user, all or none. */
  changeValuesOfUser(names: { user: string }, given: StateChange = {}, options: CallOptions = {}): Promise<StateShown> {
    return this.call(OPERATIONS.changeValuesOfUser, names, given, options);
  }

  /** Read several values of a user. */
  readValuesOfUser(names: { user: string }, given: StateKeys, options: CallOptions = {}): Promise<StateShown> {
    return this.call(OPERATIONS.readValuesOfUser, names, given, options);
  }

  /** Read a value of a user. */
  readValueOfUser(names: { user: string; key: string }, options: CallOptions = {}): Promise<StateFound> {
    return this.call(OPERATIONS.readValueOfUser, names, undefined, options);
  }

  /** Set a value of a user. */
  setValueOfUser(names: { user: string; key: string }, given: ValueSet, options: CallOptions = {}): Promise<StateFound> {
    return this.call(OPERATIONS.setValueOfUser, names, given, options);
  }

  /** Delete a value of a user. */
  deleteValueOfUser(names: { user: string; key: string }, given: ValueVersion = {}, options: CallOptions = {}): Promise<StateRemoved> {
    return this.call(OPERATIONS.deleteValueOfUser, names, given, options);
  }

  /** Erase a shared scope. */
  forgetScope(names: { scope: string; agent: string }, options: CallOptions = {}): Promise<Erased> {
    return this.call(OPERATIONS.forgetScope, names, undefined, options);
  }

  /** Share memories. */
  rememberShared(names: { scope: string; agent: string }, given: Sharing, options: CallOptions = {}): Promise<Remembered> {
    return this.call(OPERATIONS.rememberShared, names, given, options);
  }

  /** List shared memories. */
  listShared(names: { scope: string; agent: string }, given: SharedAsked = {}, options: CallOptions = {}): Promise<Recalled> {
    return this.call(OPERATIONS.listShared, names, given, options);
  }

  /** Search shared memories. */
  recallShared(names: { scope: string; agent: string }, given: SharedRecall, options: CallOptions = {}): Promise<Recalled> {
    return this.call(OPERATIONS.recallShared, names, given, options);
  }

  /** Delete shared memories. */
  deleteShared(names: { scope: string; agent: string }, given: MemoryIds, options: CallOptions = {}): Promise<DeletionReceipt> {
    return this.call(OPERATIONS.deleteShared, names, given, options);
  }

  /** Read a shared memory. */
  readShared(names: { scope: string; agent: string; memory: string }, options: CallOptions = {}): Promise<MemoryFound> {
    return this.call(OPERATIONS.readShared, names, undefined, options);
  }

  /** Change a shared memory. */
  updateShared(names: { scope: string; agent: string; memory: string }, given: MemoryChange = {}, options: CallOptions = {}): Promise<Memory> {
    return this.call(OPERATIONS.updateShared, names, given, options);
  }

  /** List members. */
  listMembers(names: { scope: string; agent: string }, options: CallOptions = {}): Promise<Members> {
    return this.call(OPERATIONS.listMembers, names, undefined, options);
  }

  /** Own a scope that has no owner. */
  claimScope(names: { scope: string; agent: string }, options: CallOptions = {}): Promise<Done> {
    return this.call(OPERATIONS.claimScope, names, undefined, options);
  }

  /** Grant a right. */
  grantRight(names: { scope: string; agent: string }, given: GrantGiven, options: CallOptions = {}): Promise<Done> {
    return this.call(OPERATIONS.grantRight, names, given, options);
  }

  /** Take rights away. */
  revokeRight(names: { scope: string; agent: string }, given: MemberNamed, options: CallOptions = {}): Promise<Done> {
    return this.call(OPERATIONS.revokeRight, names, given, options);
  }

  /** List background jobs that failed too often. */
  listDeadLetters(options: CallOptions = {}): Promise<DeadLetters> {
    return this.call(OPERATIONS.listDeadLetters, {}, undefined, options);
  }

  /** Retry dead letters. */
  retryDeadLetters(given: Retrying = {}, options: CallOptions = {}): Promise<Changed> {
    return this.call(OPERATIONS.retryDeadLetters, {}, given, options);
  }

  /** Drop dead letters. */
  dropDeadLetters(given: Dropping, options: CallOptions = {}): Promise<Changed> {
    return this.call(OPERATIONS.dropDeadLetters, {}, given, options);
  }

  /** List erasures of a user that are not done yet. */
  listErasures(names: { user: string }, options: CallOptions = {}): Promise<UnfinishedErasures> {
    return this.call(OPERATIONS.listErasures, names, undefined, options);
  }
}
