-- What a hook is to be told goes the way of mails and SMS.
alter table {outbox} drop constraint {outbox}_channel_check;
alter table {outbox} add constraint {outbox}_channel_check check (channel in ('email', 'sms', 'hook'));
