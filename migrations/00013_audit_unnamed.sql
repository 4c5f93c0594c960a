-- How many audit rows without an actor may still be written, for all replicas together: one row.
create table {audit_unnamed} (
    one boolean primary key default true check (one),
    -- Left at that time.
    tokens double precision not null,
    at timestamptz not null,
    -- Whether the last one was written.
    wrote boolean not null,
    -- How many were left out, ever; how many of them the last row that was written told, with those before it, and the one
    -- before that.
    omitted bigint not null,
    told bigint not null,
    told_before bigint not null
) with (fillfactor = 10);
