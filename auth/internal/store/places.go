package store

import (
	"time"

	"github.com/google/uuid"
)

// Place is a network from which a sign-in is tried.
type Place struct {
	// MAC names the network; nil: unknown.
	MAC []byte
	// Since is since when a sign-in from there makes it a known place of the user's.
	Since time.Time
	// Tries is the bucket that counts there instead of the account's.
	Tries Limit
}

// maxPlaces is how many places of a user are remembered.
const maxPlaces = "20"

// placeOf is the place in the table of a user's; user and mac are expressions. The user's id is hashed in, so that
// the table doesn't show which users share a network.
func placeOf(user, mac string) string {
	return "sha256(uuid_send(" + user + "::uuid) || " + mac + "::bytea)"
}

// rememberPlace are two steps of a statement that opens a session: they note where the user, a table with one
// row or none, signs in from, and forget the place longest unused when there are too many. A place that was noted
// today costs no write.
func rememberPlace(users, user, mac, now string) string {
	return `
placed as (
    insert into {known_places} as k (user_id, place, seen_at)
    select p.id, ` + placeOf("p.id",
		mac) + `, ` + now + `::timestamptz from ` + users + ` p where ` + mac + `::bytea is not null
    on conflict (user_id, place) do update set seen_at = excluded.seen_at where k.seen_at < excluded.seen_at - interval '1 day'
), forgotten as (
    delete from {known_places} k using ` + users + ` p
    where k.user_id = p.id and ` + mac + `::bytea is not null and k.place in (
        select o.place from {known_places} o where o.user_id = ` + user + `::uuid and o.place <> ` + placeOf(user,
		mac) + `
        order by o.seen_at desc, o.place offset ` + maxPlaces + ` - 1)
)`
}

// knowsPlace is whether a place is known of a user.
func knowsPlace(user, mac, since string) string {
	return `exists (select from {known_places} k
    where k.user_id = ` + user + ` and k.place = ` + placeOf(user, mac) + ` and k.seen_at > ` + since + `::timestamptz)`
}

var deletePlaces = define(`
delete from {known_places} where user_id = $1`)

// DeletePlaces forgets where a user signed in from.
func (b *Batch) DeletePlaces(user uuid.UUID) { b.exec("delete places", deletePlaces, user) }
