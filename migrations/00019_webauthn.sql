-- Passkeys, security keys and recovery codes.

-- The passkey that opened the session, also after the passkey was deleted. No index: a user's sessions are few, and
-- {sessions_user} finds them.
alter table {sessions} add passkey_id uuid;

alter table {factors} drop constraint {factors}_kind_check;
alter table {factors} add constraint {factors}_kind_check check (kind in ('totp', 'phone', 'webauthn', 'recovery_code'));
create unique index {factors_recovery_key} on {factors} (user_id) where kind = 'recovery_code';

-- What an authenticator made for a user. The id is unique over all users, passkeys and factors.
create table {webauthn_credentials} (
    id uuid primary key,
    user_id uuid not null references {users} on delete cascade,
    -- null: a passkey.
    factor_id uuid constraint {webauthn_credentials}_factor_fk references {factors} on delete cascade,
    credential_id bytea not null,
    -- COSE_Key, as received.
    public_key bytea not null,
    -- The model of the authenticator by its own account; null: none was given.
    aaguid uuid,
    sign_count bigint not null default 0,
    transports text[] not null default '{}',
    backup_eligible boolean not null,
    backed_up boolean not null,
    -- A passkey that was registered while its user had a verified factor, or whose session has verified one.
    bound boolean not null default false,
    friendly_name text not null default '',
    created_at timestamptz not null,
    -- null: never.
    last_used_at timestamptz
) with (fillfactor = 85);

create unique index {webauthn_credentials_key} on {webauthn_credentials} (credential_id);
create index {webauthn_credentials_user} on {webauthn_credentials} (user_id);
create unique index {webauthn_credentials_factor} on {webauthn_credentials} (factor_id) where factor_id is not null;

-- Challenges of passkeys that were answered. The first four bytes of an id are its time of expiry.
create table {spent_challenges} (id uuid primary key);

-- The recovery codes of a factor: MACs over the factor's id and the code.
create table {recovery_codes} (
    factor_id uuid not null references {factors} on delete cascade,
    mac bytea not null,
    -- null: not yet.
    used_at timestamptz,
    primary key (factor_id, mac)
);
