-- Refresh tokens of a service that users were taken over from: each stands for its session's first token here.
create table {former_tokens} (
    -- MAC over the token's text, which is not stored.
    token_mac bytea primary key,
    session_id uuid not null references {sessions} on delete cascade
);

create index {former_tokens_session} on {former_tokens} (session_id);

-- Takeovers of the users of another service's tables: how far one is, and since when it has been closed.
create table {moves} (
    id uuid primary key,
    kind text not null,
    -- HOST:PORT/DATABASE SCHEMA, without a user or a password.
    source text not null,
    state text not null check (state in ('open', 'closed')),
    -- The process that is working on it: a batch of any other one fails.
    owner uuid,
    -- Rows that transactions from this one on have written are carried by the next pass; pass_floor is that of the pass
    -- that is under way.
    floor bigint,
    pass_floor bigint,
    -- Which tables of which cluster the rows came from.
    source_mark text,
    -- Cursors and counts, committed with each batch.
    steps jsonb not null default '{}',
    started_at timestamptz not null,
    closed_at timestamptz
);

create unique index {moves_open} on {moves} (kind) where state = 'open' and kind = 'takeover';
