-- Mails and SMS, written in the transaction of the change they announce and sent afterwards.
create table {outbox} (
    id uuid primary key,
    channel text not null check (channel in ('email', 'sms')),
    kind text not null,
    -- Whose; without a foreign key, so that a deleted user's last mails can still be looked up.
    user_id uuid,
    -- Sealed under the root key; null once sent, failed or expired.
    payload bytea,
    state text not null default 'pending' check (state in ('pending', 'sent', 'failed', 'expired')),
    attempts integer not null default 0,
    -- Nobody may claim it before: the end of a lease, or of a pause after a failure.
    due_at timestamptz not null,
    -- Never sent after it.
    expires_at timestamptz not null,
    created_at timestamptz not null,
    done_at timestamptz,
    -- Of the last attempt, in our words.
    error text not null default ''
) with (fillfactor = 70);

create index {outbox_due} on {outbox} (due_at) where state = 'pending';
create index {outbox_newest} on {outbox} (created_at);
create index {outbox_user} on {outbox} (user_id) where state = 'pending';
