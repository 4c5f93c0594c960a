create schema auth;
create type auth.aal_level as enum ('aal1', 'aal2', 'aal3');
create type auth.factor_type as enum ('totp', 'webauthn', 'phone');
create type auth.factor_status as enum ('unverified', 'verified');
create type auth.code_challenge_method as enum ('s256', 'plain');
create type auth.one_time_token_type as enum ('confirmation_token', 'reauthentication_token', 'recovery_token',
  'email_change_token_new', 'email_change_token_current', 'phone_change_token');
create table auth.schema_migrations (version varchar(255) primary key);
create table auth.users (id uuid primary key, instance_id uuid, aud varchar(255), role varchar(255), email varchar(255),
  encrypted_password varchar(255), email_confirmed_at timestamptz, invited_at timestamptz,
  confirmation_token varchar(255), confirmation_sent_at timestamptz, recovery_token varchar(255), recovery_sent_at timestamptz,
  email_change_token_new varchar(255), email_change varchar(255), email_change_sent_at timestamptz, last_sign_in_at timestamptz,
  raw_app_meta_data jsonb, raw_user_meta_data jsonb, is_super_admin boolean, created_at timestamptz, updated_at timestamptz,
  phone text unique, phone_confirmed_at timestamptz, phone_change text default '', phone_change_token varchar(255) default '',
  phone_change_sent_at timestamptz, confirmed_at timestamptz generated always as (least(email_confirmed_at, phone_confirmed_at)) stored,
  email_change_token_current varchar(255) default '', email_change_confirm_status smallint default 0, banned_until timestamptz,
  reauthentication_token varchar(255) default '', reauthentication_sent_at timestamptz,
  is_sso_user boolean not null default false, deleted_at timestamptz, is_anonymous boolean not null default false);
create unique index users_email_partial_key on auth.users (email) where not is_sso_user;
create table auth.identities (id uuid primary key default gen_random_uuid(), provider_id text not null, user_id uuid not null references auth.users on delete cascade,
  identity_data jsonb not null, provider text not null, last_sign_in_at timestamptz, created_at timestamptz, updated_at timestamptz,
  email text generated always as (lower(identity_data->>'email')) stored, unique (provider_id, provider));
create index identities_user_id_idx on auth.identities (user_id);
create table auth.oauth_clients (id uuid primary key, client_name text, deleted_at timestamptz);
create table auth.sessions (id uuid primary key, user_id uuid not null references auth.users on delete cascade, created_at timestamptz, updated_at timestamptz,
  factor_id uuid, aal auth.aal_level, not_after timestamptz, refreshed_at timestamp, user_agent text, ip inet, tag text,
  oauth_client_id uuid references auth.oauth_clients on delete cascade, refresh_token_hmac_key text, refresh_token_counter bigint, scopes text);
create index sessions_user_id_idx on auth.sessions (user_id);
create table auth.refresh_tokens (id bigserial primary key, instance_id uuid, token varchar(255) unique, user_id varchar(255), revoked boolean,
  created_at timestamptz, updated_at timestamptz, parent varchar(255), session_id uuid references auth.sessions on delete cascade);
create index refresh_tokens_session_id_revoked_idx on auth.refresh_tokens (session_id, revoked);
create table auth.mfa_factors (id uuid primary key, user_id uuid not null references auth.users on delete cascade, friendly_name text,
  factor_type auth.factor_type not null, status auth.factor_status not null, created_at timestamptz not null, updated_at timestamptz not null,
  secret text, phone text, last_challenged_at timestamptz unique, web_authn_credential jsonb, web_authn_aaguid uuid, last_webauthn_challenge_data jsonb);
create table auth.mfa_amr_claims (id uuid primary key, session_id uuid not null references auth.sessions on delete cascade,
  created_at timestamptz not null, updated_at timestamptz not null, authentication_method text not null, unique (session_id, authentication_method));
create table auth.one_time_tokens (id uuid primary key, user_id uuid not null references auth.users on delete cascade, token_type auth.one_time_token_type not null,
  token_hash text not null, relates_to text not null, created_at timestamp not null default now(), updated_at timestamp not null default now(), unique (user_id, token_type));
create table auth.flow_state (id uuid primary key, user_id uuid, auth_code text, code_challenge_method auth.code_challenge_method, code_challenge text,
  provider_type text not null, provider_access_token text, provider_refresh_token text, created_at timestamptz, updated_at timestamptz,
  authentication_method text not null, auth_code_issued_at timestamptz);
create table auth.webauthn_credentials (id uuid primary key default gen_random_uuid(), user_id uuid not null references auth.users on delete cascade,
  credential_id bytea not null unique, public_key bytea not null, attestation_type text, aaguid uuid, sign_count bigint not null default 0,
  transports jsonb not null default '[]', backup_eligible boolean not null default false, backed_up boolean not null default false,
  friendly_name text not null default '', created_at timestamptz not null default now(), updated_at timestamptz not null default now(), last_used_at timestamptz);
create function auth.uid() returns uuid language sql stable as $$ select (current_setting('request.jwt.claims', true)::jsonb->>'sub')::uuid $$;
alter table auth.schema_migrations enable row level security;
alter table auth.users enable row level security;
alter table auth.identities enable row level security;
alter table auth.sessions enable row level security;
alter table auth.refresh_tokens enable row level security;
alter table auth.mfa_factors enable row level security;
alter table auth.mfa_amr_claims enable row level security;
alter table auth.one_time_tokens enable row level security;
alter table auth.flow_state enable row level security;
insert into auth.schema_migrations values ('20210101000000'), ('20240427152123'), ('20260625000000');
