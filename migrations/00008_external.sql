-- Sign-in by external providers: what is remembered while a browser is away at one.

create table {external_states} (
    -- SHA-256 of the state parameter, so that the row gives nobody a state.
    state_hash bytea primary key,
    provider text not null,
    aud text not null,
    -- Where the browser goes in the end; it was judged when the flow began.
    redirect_to text not null,
    -- The client's half of PKCE; both '' in the implicit flow.
    challenge text not null default '',
    challenge_method text not null default '',
    -- link_hash of the invitation that is to be accepted.
    invite_hash bytea,
    -- Who links the identity to his account, and the session he asked from. Not a reference: that he
    -- is gone is told in its own words.
    linking_user uuid,
    linking_session uuid,
    -- SHA-256 of the cookie that the same browser has to bring back; null: none was set.
    cookie_hash bytea,
    -- What the protocol needs to finish (PKCE verifier, nonce, request token), sealed under the root key.
    private bytea,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    -- The first callback with this state, whatever became of it.
    used_at timestamptz
);

create index {external_states_expires} on {external_states} (expires_at);

-- ID tokens that have signed somebody in: none does it twice.
create table {spent_id_tokens} (
    -- SHA-256 of issuer and jti, nonce or signature.
    key bytea primary key,
    expires_at timestamptz not null
);

create index {spent_id_tokens_expires} on {spent_id_tokens} (expires_at);

-- A flow that came from a provider: its tokens, sealed, until the code is exchanged; the level and the
-- methods of the session that linked the identity.
alter table {flows}
    add provider text not null default '',
    add provider_tokens bytea,
    add aal smallint,
    add amr jsonb;

-- The identity whose sign-in asked for this confirmation: others are not confirmed with it.
alter table {one_time_tokens} add identity_id uuid;
