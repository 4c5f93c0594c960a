-- Second factors: what a user proves besides his first way in.
create table {factors} (
    id uuid primary key,
    user_id uuid not null references {users} on delete cascade,
    kind text not null check (kind in ('totp', 'phone', 'webauthn')),
    -- '' for none; a user has one without a name at most.
    friendly_name text not null default '',
    -- Of a phone factor, without its plus.
    phone text not null default '',
    -- Of a TOTP factor: its key, sealed under the root key.
    secret bytea,
    -- The last TOTP step that was accepted: it and those before it are refused.
    last_step bigint not null default 0,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    -- null: nobody has shown yet that he has it.
    verified_at timestamptz,
    last_challenged_at timestamptz
);

-- Serves all that is asked by user, too.
create unique index {factors_name_key} on {factors} (user_id, friendly_name);
create unique index {factors_phone_key} on {factors} (user_id, phone) where phone <> '';
create index {factors_unverified} on {factors} (created_at) where verified_at is null;

-- A question for a factor's code, and how often it was answered wrongly.
create table {challenges} (
    id uuid primary key,
    factor_id uuid not null references {factors} on delete cascade,
    -- The asker's address, where a proxy that is trusted told it; '' else.
    ip text not null default '',
    -- Of a phone factor: MAC over the challenge's id and the digits that were sent.
    otp_mac bytea,
    misses smallint not null default 0,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    verified_at timestamptz
);

create index {challenges_factor} on {challenges} (factor_id, created_at);
create index {challenges_expires} on {challenges} (expires_at);
