-- The rows of a takeover: each user has an identity and a session, half of the sessions are of each version, and every
-- tenth user has a factor. {hash}, {users} and {revoked} are filled in.
set synchronous_commit = off;
set session_replication_role = replica;

insert into auth.users (id, instance_id, aud, role, email, encrypted_password, email_confirmed_at, last_sign_in_at,
		raw_app_meta_data, raw_user_meta_data, created_at, updated_at)
	select gen_random_uuid(), '00000000-0000-0000-0000-000000000000', 'authenticated', 'authenticated', 'user-' || n || '@bench.example', '{hash}',
		now(), now(), '{"provider": "email", "providers": ["email"]}', jsonb_build_object('email', 'user-' || n || '@bench.example', 'email_verified', true),
		now() - n * interval '1 s', now()
	from generate_series(1, {users}) n;

insert into auth.identities (id, provider_id, user_id, identity_data, provider, last_sign_in_at, created_at, updated_at)
	select gen_random_uuid(), id, id, jsonb_build_object('sub', id, 'email', email, 'email_verified', true), 'email', now(), now(), now() from auth.users;

insert into auth.sessions (id, user_id, created_at, updated_at, refreshed_at, aal, user_agent, ip, refresh_token_hmac_key, refresh_token_counter)
	select gen_random_uuid(), id, now(), now(), now(), 'aal1', 'Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36', '192.0.2.7',
		case when n % 2 = 0 then translate(rtrim(encode(sha256(id::text::bytea), 'base64'), '='), '+/', '-_') end, case when n % 2 = 0 then n % 300 end
	from (select id, row_number() over () n from auth.users) u;

insert into auth.mfa_amr_claims (id, session_id, created_at, updated_at, authentication_method)
	select gen_random_uuid(), id, now(), now(), 'password' from auth.sessions;

insert into auth.refresh_tokens (token, user_id, revoked, created_at, updated_at, session_id)
	select substr(md5(id::text || n), 1, 20) || n || 'x', user_id, true, now(), now(), id from auth.sessions, generate_series(1, {revoked}) n;

insert into auth.refresh_tokens (token, user_id, revoked, created_at, updated_at, session_id)
	select substr(md5(id::text || 'live'), 1, 12), user_id, false, now(), now(), id from auth.sessions where refresh_token_hmac_key is null
	on conflict do nothing;

insert into auth.mfa_factors (id, user_id, friendly_name, factor_type, status, created_at, updated_at, secret)
	select gen_random_uuid(), id, 'app', 'totp', 'verified', now(), now(), 'JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP'
	from (select id, row_number() over () n from auth.users) u where n % 10 = 0;
