-- When a session's refresh token was rotated by the database's clock, and to which counter: the time in
-- which the token before is still good must not depend on the clocks of two replicas. A program that
-- does not know these columns leaves the counter behind, and refreshed_at counts.
alter table {sessions}
    add rotated_at timestamptz,
    add rotated_counter bigint;

-- A failed message keeps its payload until it expires, so that an operator can send it again; it is
-- wiped with its user.
create index {outbox_failed} on {outbox} (user_id) where state = 'failed' and payload is not null;
