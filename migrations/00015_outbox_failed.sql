-- A failed message keeps its payload until it expires, so that an operator can send it again; it is
-- wiped with its user.
create index {outbox_failed} on {outbox} (user_id) where state = 'failed' and payload is not null;
