-- Administrators list the messages of a user, and those that failed, newest first. The index by user takes the place of
-- the two partial ones, so that a message still costs as many entries.
create index {outbox_of_user} on {outbox} (user_id, created_at desc, id desc) where user_id is not null;
create index {outbox_undelivered} on {outbox} (created_at desc, id desc) where state = 'failed';
drop index {outbox_user};
drop index {outbox_failed};
