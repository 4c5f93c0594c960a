-- One row for each sign-in. A refresh token is not stored: the row holds what proves one
-- (the hash of the session's random bytes) and the number of the one issued last.
--
-- Refreshing writes counter, refreshed_at, user_agent and ip. No index holds any of them, and a
-- page keeps room for the new version (HOT update); the first two stand together so that the
-- update's WAL record holds little else.
create table {sessions} (
    id uuid primary key,
    user_id uuid not null references {users} on delete cascade,
    created_at timestamptz not null,
    secret_hash bytea not null,
    -- 0 until the first refresh.
    counter bigint not null default 0,
    -- The time of the last rotation; created_at until the first.
    refreshed_at timestamptz not null,
    user_agent text not null default '',
    ip text not null default '',
    aal smallint not null default 1,
    -- [{"method","timestamp","provider"?}], newest first.
    amr jsonb not null,
    tag text not null default '',
    factor_id uuid,
    not_after timestamptz,
    -- An ended session keeps its row until nobody can come back with one of its tokens.
    ended_at timestamptz,
    ended_reason text not null default ''
) with (fillfactor = 70);

create index {sessions_user} on {sessions} (user_id);
