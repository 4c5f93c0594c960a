-- The users of the large database, each as a sign-up by e-mail address leaves it, and their sessions. {hash}, {users} and
-- {sessions} are filled in.
set synchronous_commit = off;
set session_replication_role = replica; -- no look-up of each session's user
set statement_timeout = '5min';

insert into users (id, aud, role, email, password_hash, app_metadata, user_metadata, created_at, updated_at, last_sign_in_at, email_confirmed_at)
	select gen_random_uuid(), 'authenticated', 'authenticated', 'million-' || lpad(n::text, 7, '0') || '@bench.example', '{hash}',
		'{"provider": "email", "providers": ["email"]}', '{"email_verified": true, "phone_verified": false}', at, at, at, at
	from generate_series(1, {users}) n, lateral (select now() - (random() * 1000) * interval '1 day' + n * interval '0 s' as at) a;

insert into identities (id, user_id, provider, provider_id, email, identity_data, created_at, updated_at, last_sign_in_at)
	select gen_random_uuid(), id, 'email', id::text, email, jsonb_build_object('sub', id, 'email', email), created_at, created_at, created_at from users;

insert into sessions (id, user_id, created_at, secret_hash, refreshed_at, user_agent, ip, amr)
	select gen_random_uuid(), id, created_at, sha256(id::text::bytea), created_at, 'gatehouse-bench', '127.0.0.1', '[{"method": "password", "timestamp": 1795277919}]'
	from users, generate_series(1, {sessions});
