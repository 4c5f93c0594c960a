-- Accounts and the ways into them.
--
-- An address is '' when there is none; e-mail addresses are stored lower-cased, phone numbers
-- without their plus. Queries say "email <> ''" so that the partial indexes serve them.
create table {users} (
    id uuid primary key,
    aud text not null,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    last_sign_in_at timestamptz,
    role text not null,
    email text not null default '',
    phone text not null default '',
    password_hash text not null default '',
    is_anonymous boolean not null default false,
    app_metadata jsonb not null default '{}',
    user_metadata jsonb not null default '{}',
    email_confirmed_at timestamptz,
    phone_confirmed_at timestamptz,
    invited_at timestamptz,
    banned_until timestamptz,
    deleted_at timestamptz,
    confirmation_sent_at timestamptz,
    recovery_sent_at timestamptz,
    email_change_sent_at timestamptz,
    phone_change_sent_at timestamptz,
    reauthentication_sent_at timestamptz,
    -- A change of address that waits for its proofs: each is set by that address' own token.
    new_email text not null default '',
    new_phone text not null default '',
    current_email_proven boolean not null default false,
    new_email_proven boolean not null default false
) with (fillfactor = 85);

create unique index {users_email_key} on {users} (aud, email) where email <> '';
create unique index {users_phone_key} on {users} (aud, phone) where phone <> '';
-- The administrator's list: newest first, cut into pages.
create index {users_newest} on {users} (aud, created_at desc, id desc);

-- Those who may be removed when nobody came back for long.
create index {users_anonymous} on {users} (created_at) where is_anonymous;

create table {identities} (
    id uuid primary key,
    user_id uuid not null references {users} on delete cascade,
    provider text not null,
    provider_id text not null,
    -- Lower-cased; '' when the provider gave none.
    email text not null default '',
    identity_data jsonb not null,
    last_sign_in_at timestamptz,
    created_at timestamptz not null,
    updated_at timestamptz not null
) with (fillfactor = 85);

create unique index {identities_provider_key} on {identities} (provider, provider_id);
create index {identities_user} on {identities} (user_id);
create index {identities_email} on {identities} (email) where email <> '';
