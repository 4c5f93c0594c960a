-- Where users signed in from. Wrong passwords and codes that come from such a place are counted apart, so that
-- a stranger's don't lock out the owner.
create table {known_places} (
    user_id uuid not null references {users} on delete cascade,
    -- SHA-256 of the user's id and a MAC of the network; never an address itself, and no two users' are alike.
    place bytea not null,
    -- Of the last sign-in from there, a day more or less.
    seen_at timestamptz not null,
    primary key (user_id, place)
) with (fillfactor = 85);

create index {known_places_seen} on {known_places} (seen_at);
