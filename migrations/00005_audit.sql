-- One narrow row for each security-relevant act. What it refers to may be gone.
create table {audit} (
    id bigint generated always as identity primary key,
    at timestamptz not null,
    -- The number of the action; store/audit.go has the names.
    action smallint not null,
    -- The user who acted; null for a service token, whose role stands beside it.
    actor_id uuid,
    actor_role text,
    session_id uuid,
    ip text not null default '',
    traits jsonb
);

create index {audit_at} on {audit} using brin (at);
