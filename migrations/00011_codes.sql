-- Codes end with the sessions. A code that is given out by one transaction while another one ends
-- sessions is seen by neither, so the time is compared when the code is exchanged.
alter table {users} add sessions_void_before timestamptz;

-- A used flow stays until it expires, with the session that its code opened: a code that comes back
-- was stolen once. Its code_hash is the hash of the hash, under which no older program finds it.
alter table {flows}
    add used_at timestamptz,
    add session_id uuid,
    -- Linking: the provider's profile, sealed, which is linked when the code is exchanged; the session that
    -- asked for it and its level at that time.
    add linked_profile bytea,
    add linking_session uuid,
    add linking_aal smallint;

alter table {external_states} add linking_aal smallint;
