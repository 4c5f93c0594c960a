-- Private keys that sign tokens, sealed under the root key.
--
-- The key that signs is the one with the latest signs_at that has passed and that is not revoked.
-- Nothing has to be written when the hour comes, so no replica has to lead.
create table {signing_keys} (
    kid text primary key,
    algorithm text not null,
    sealed bytea not null,
    created_at timestamptz not null,
    signs_at timestamptz not null,
    revoked_at timestamptz
);

