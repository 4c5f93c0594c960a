package store

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Limit is a token bucket that holds over all replicas.
type Limit struct {
	// Key names the bucket: a MAC, never an address itself.
	Key []byte
	// Size is how much a full bucket holds; with 0 everything is refused.
	Size float64
	// Refill is how long an empty bucket takes to become full.
	Refill time.Duration
}

// NewInterval returns the limit of one act per pause: a bucket that holds one token.
func NewInterval(key []byte, pause time.Duration) Limit {
	return Limit{Key: key, Size: 1, Refill: pause}
}

// Level is what a bucket held at a time. The zero Level is that of a full bucket, which was never used.
type Level struct {
	Tokens float64
	At     time.Time
}

// Left returns what the bucket holds now.
func (l Limit) Left(v Level, now time.Time) float64 {
	if v.At.IsZero() || l.Refill <= 0 {
		return l.Size
	}
	return min(l.Size, v.Tokens+max(0, now.Sub(v.At).Seconds())*l.rate())
}

// Wait returns how long it takes until n can be taken; 0: at once. For a bucket smaller than n it is the longest
// Duration.
func (l Limit) Wait(v Level, now time.Time, n float64) time.Duration {
	lacking := n - l.Left(v, now)
	if lacking <= 0 {
		return 0
	}
	if n > l.Size {
		return math.MaxInt64
	}
	// Round up to whole microseconds, except for a rounding error.
	return time.Duration(math.Ceil(lacking/l.rate()*1e6-1e-3)) * time.Microsecond
}

// rate returns the tokens per second.
func (l Limit) rate() float64 {
	if l.Refill <= 0 {
		return math.MaxFloat32
	}
	return l.Size / l.Refill.Seconds()
}

// LimitError says which bucket held too little.
type LimitError struct{ Limit Limit }

func (e *LimitError) Error() string { return fmt.Sprintf("limit %x is used up", e.Limit.Key) }

var selectLevels = define(`
select n.i, l.tokens, l.at
from unnest($1::bytea[]) with ordinality n (key, i) join {limits} l on l.key = n.key`)

var selectLevelsAt = define(`
select n.i, l.tokens, l.at
from unnest($1::bytea[]) with ordinality n (key, i) join {limits} l on l.key = n.key
union all
select 0, 0, null where ` + ownerKnows("$2", "$3", "$4", "$5"))

// Levels reads buckets; dst gets one Level for each limit.
func (b *Batch) Levels(dst *[]Level, limits ...Limit) {
	b.rows("levels", dst, levelsInto(dst, new(bool), len(limits)), selectLevels, keysOf(limits))
}

// UserAt is the user with an address, at a place.
type UserAt struct {
	Aud, Address string
	Place        Place
}

// LevelsAt is Levels, and reports whether the place is a known place of the user.
func (b *Batch) LevelsAt(dst *[]Level, known *bool, u UserAt, limits ...Limit) {
	b.rows("levels", dst, levelsInto(dst, known, len(limits)), selectLevelsAt, keysOf(limits), u.Aud, u.Address,
		u.Place.MAC, u.Place.Since)
}

func keysOf(limits []Limit) [][]byte {
	keys := make([][]byte, len(limits))
	for i, l := range limits {
		keys[i] = l.Key
	}
	return keys
}

// levelsInto reads the levels of n limits, whose rows are numbered from 1; row 0 says that the place is known.
func levelsInto(dst *[]Level, known *bool, n int) func(pgx.Rows) error {
	*dst, *known = make([]Level, n), false
	return func(r pgx.Rows) error {
		var i int
		var v Level
		if err := scanRow(r, []any{&i, &v.Tokens, &v.At}); err != nil {
			return err
		}
		if i == 0 {
			*known = true
			return nil
		}
		(*dst)[i-1] = v
		return nil
	}
}

// bucket has the parameters of a statement that describe a bucket: size, tokens per second, seconds to refill, the time.
type bucket struct{ size, rate, refill, now string }

// holds returns the SQL for what the bucket in a row l of {limits} holds.
func (b bucket) holds() string {
	return "least(" + b.size + "::float8, l.tokens + greatest(0, extract(epoch from " + b.now +
		"::timestamptz - l.at)::float8) * " + b.rate + "::float8)"
}

// holdsTry returns the SQL for whether it holds a try. The tolerance is only for rounding.
func (b bucket) holdsTry() string { return b.holds() + " >= 1 - 1e-9" }

// fullAt returns the SQL for when the bucket is full, if it becomes empty now.
func (b bucket) fullAt() string {
	return b.now + "::timestamptz + " + b.refill + "::float8 * interval '1 second'"
}

// takeFrom returns the step taken of a statement, which takes a try from the bucket with a key, for each row of from,
// and has a row if there was a try. A bucket that is already empty is not written: it refills as if no try had been
// made.
func takeFrom(key, from string, b bucket) string {
	return `taken as (
    insert into {limits} as l (key, tokens, at, full_at)
    select ` + key + `, ` + b.size + `::float8 - 1, ` + b.now + `::timestamptz, ` + b.fullAt() + ` ` + from + `
    on conflict (key) do update set tokens = greatest(0, ` + b.holds() + ` - 1),
        at = greatest(l.at, ` + b.now + `::timestamptz), full_at = greatest(l.full_at, ` + b.fullAt() + `)
    where ` + b.holdsTry() + `
    returning 1
)`
}

// markPause returns the step marked of a statement, which takes the token of an interval, for each row of from, and has
// a row if the token was there.
func markPause(key, refill, now, from string) string {
	return `marked as (
    insert into {limits} as l (key, tokens, at, full_at)
    select ` + key + `::bytea, 0, ` + now + `::timestamptz, ` +
		bucket{refill: refill, now: now}.fullAt() + ` ` + from + `
    on conflict (key) do update set at = ` + now + `, full_at = excluded.full_at
    where l.full_at <= ` + now + `
    returning 1
)`
}

// The new level is computed from the row as it is once the lock on it is held. A level below zero violates
// {limits_floor}.
var takeLimit = define(`
insert into {limits} as l (key, tokens, at, full_at)
values ($1, $2::float8 - $4::float8, $5::timestamptz, $5::timestamptz + $6::float8 * interval '1 second')
on conflict (key) do update set
    tokens = ` + bucket{size: "$2", rate: "$3", now: "$5"}.holds() + ` - $4::float8,
    at = greatest(l.at, $5::timestamptz),
    full_at = greatest(l.full_at, excluded.full_at)`)

// Take takes n from a bucket. If the bucket holds less, Send fails with a LimitError and nothing of the batch happens.
// Taking 0 costs the same and always succeeds.
func (b *Batch) Take(l Limit, n float64, now time.Time) {
	b.add("take", func(r pgx.BatchResults) error {
		_, err := r.Exec()
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "23514" { // check_violation
			return &LimitError{l}
		}
		return err
	}, takeLimit, l.Key, l.Size, l.rate(), n, now, l.Refill.Seconds())
}

var deleteLimits = define(`
delete from {limits} where key = any($1::bytea[])`)

// ForgetLimits makes buckets full again.
func (b *Batch) ForgetLimits(keys ...[]byte) { b.exec("forget limits", deleteLimits, keys) }

// Place is a network from which a sign-in is tried.
type Place struct {
	// MAC names the network; nil: unknown.
	MAC []byte
	// Since bounds the age of a sign-in from the place that makes it a known place of the user.
	Since time.Time
	// Tries is the bucket that counts at a known place instead of the account's.
	Tries Limit
}

// maxPlaces is how many places of a user are remembered.
const maxPlaces = "20"

// placeOf returns the SQL for a user's place as it is stored; user and mac are expressions. The hash includes the
// user's id, so that the table does not show which users share a network.
func placeOf(user, mac string) string {
	return "sha256(uuid_send(" + user + "::uuid) || " + mac + "::bytea)"
}

// rememberPlace returns two steps of a statement that opens a session: they store the place that the user signs in
// from, and delete the place that was unused longest if there are too many. users is a table with one row or none. A
// place that was stored today costs no write.
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

// knowsPlace returns the SQL for whether a place is a known place of a user.
func knowsPlace(user, mac, since string) string {
	return `exists (select from {known_places} k
    where k.user_id = ` + user + ` and k.place = ` + placeOf(user, mac) + ` and k.seen_at > ` + since + `::timestamptz)`
}

var deletePlaces = define(`
delete from {known_places} where user_id = $1`)

// DeletePlaces forgets where a user signed in from.
func (b *Batch) DeletePlaces(user uuid.UUID) { b.exec("delete places", deletePlaces, user) }
