-- Token buckets that hold across replicas: mails an hour, tries of a password, and the pause
-- between two mails to one address (a bucket of one).
--
-- Taking more than there is violates limits_floor, which undoes all else that was sent with it.
create table {limits} (
    -- SHA-256 or MAC of what is limited; never an address itself.
    key bytea primary key,
    -- Left at that time.
    tokens double precision not null,
    at timestamptz not null,
    -- When it will be full again and the row is worth nothing.
    full_at timestamptz not null,
    constraint {limits_floor} check (tokens >= 0)
) with (fillfactor = 70);
