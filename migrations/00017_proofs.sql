-- What a user has proven, and what only a setting confirmed.
--
-- Programs of before run on this schema, during a rolling update and after a step back: new columns have defaults,
-- and a constraint is added only where no program of before can violate it. These rules are therefore not
-- constraints, although one row can say them; docs/accounts.md lists them, and the tests assert them:
--   - an anonymous user has no confirmed address: programs of before keep is_anonymous where an administrator had
--     given the address and its owner proves it. The rows are repaired here, every proof clears the flag from now on,
--     and what removes anonymous users looks at the proofs too;
--   - what is unproven is confirmed: programs of before remove an address without looking at the flag. Without a
--     confirmed address the flag means nothing;
--   - what is confirmed is there: a takeover by a program of before may carry other rows;
--   - an erased user has no password and no pending change: a sign-up at the same moment writes one, and is undone by a
--     later statement of its transaction. A constraint would fail it first, with an error that is not tried again.
alter table {users}
    -- Confirmed by AUTH_MAILER_AUTOCONFIRM or AUTH_SMS_AUTOCONFIRM alone: the owner of the address gets the account.
    add email_unproven boolean not null default false,
    add phone_unproven boolean not null default false;

update {users} set is_anonymous = false
where is_anonymous and (email <> '' and email_confirmed_at is not null or phone <> '' and phone_confirmed_at is not null);

alter table {one_time_tokens}
    -- Several sign-ups of the address differ, or one with another password was refused: POST /resend renews none.
    add contested boolean not null default false;

-- "Not valid": rows of before are not read, which would lock large tables for long. No program wrote others.
alter table {sessions} add constraint {sessions_ended}
    check ((ended_at is null) = (ended_reason = '') and aal in (1, 2)) not valid;
alter table {one_time_tokens} add constraint {one_time_tokens_waiting}
    check ((password_hash = '' or kind in ('signup', 'email_change_new', 'phone_change'))
        and (user_metadata is null and not contested or kind = 'signup')) not valid;
