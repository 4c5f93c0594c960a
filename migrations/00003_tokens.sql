-- What is sent to an address to prove that somebody reads there: a link and digits, both stored
-- so that the row gives away neither.
create table {one_time_tokens} (
    id uuid primary key,
    user_id uuid not null references {users} on delete cascade,
    -- signup, invite, recovery, magiclink, email_change_current, email_change_new,
    -- sms, phone_change, reauthentication
    kind text not null,
    -- Where it was sent.
    address text not null,
    -- SHA-256 of the link's 32 random bytes; null for what has no link.
    link_hash bytea,
    -- MAC over kind, address and digits; null once five tries were wrong.
    otp_mac bytea,
    misses smallint not null default 0,
    -- The PKCE flow that this token's link continues.
    flow_id uuid,
    -- A pending sign-up: the password and metadata that this token would confirm.
    password_hash text not null default '',
    user_metadata jsonb,
    created_at timestamptz not null,
    expires_at timestamptz not null
);

create unique index {one_time_tokens_link_key} on {one_time_tokens} (link_hash);
create index {one_time_tokens_address} on {one_time_tokens} (address, kind);
create index {one_time_tokens_user} on {one_time_tokens} (user_id, kind);
create index {one_time_tokens_expires} on {one_time_tokens} (expires_at);

-- PKCE: what a client must prove before it gets the session of a link or a provider.
create table {flows} (
    id uuid primary key,
    user_id uuid references {users} on delete cascade,
    -- The amr method of the session: email/signup, magiclink, recovery, invite, email_change, oauth.
    method text not null,
    challenge text not null,
    challenge_method text not null check (challenge_method in ('s256', 'plain')),
    -- SHA-256 of the code, set when the link was used; the code lives 300 s from issued_at.
    code_hash bytea,
    issued_at timestamptz,
    created_at timestamptz not null,
    expires_at timestamptz not null
);

create unique index {flows_code_key} on {flows} (code_hash);
create index {flows_user} on {flows} (user_id);
create index {flows_expires} on {flows} (expires_at);
