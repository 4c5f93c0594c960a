package store

import (
	"time"

	"github.com/google/uuid"
)

// Challenge is a request to a user to enter the code of a factor.
type Challenge struct {
	ID, Factor uuid.UUID
	// IP is the client's IP address, as reported by a trusted proxy, or "".
	IP string
	// OTPMAC is the MAC of the challenge's id and the code that was sent; nil for TOTP.
	OTPMAC               []byte
	Misses               int
	CreatedAt, ExpiresAt time.Time
	VerifiedAt           time.Time // zero if no right answer was given
}

// challengesKept is how many challenges a factor may have. Adding one more deletes the oldest.
const challengesKept = 20

// insertChallenge also sets the factor's last_challenged_at in the same statement, since a separate UPDATE would take
// one more lock.
var insertChallenge = define(`
with marked as (
    update {factors} set last_challenged_at = $5 where id = $2 and user_id = $7 returning id
), dropped as (
    delete from {challenges} where id in (
        select id from {challenges} where factor_id = $2 order by created_at desc, id desc offset $8)
)
insert into {challenges} (id, factor_id, ip, otp_mac, created_at, expires_at)
values ($1, (select id from marked), $3, $4, $5, $6)`)

// InsertChallenge adds a challenge for a user's factor. If the user has no such factor, Send returns ErrNotFound and
// the whole Batch is undone.
func (b *Batch) InsertChallenge(user uuid.UUID, c Challenge) {
	b.exec("insert challenge", insertChallenge, c.ID, c.Factor, c.IP, bytesOrNull(c.OTPMAC), c.CreatedAt, c.ExpiresAt,
		user, challengesKept-1)
}

// Attempt has the data that is needed to judge an answer to a challenge.
type Attempt struct {
	// Secret is the sealed TOTP key, LastStep the last TOTP time step that was accepted.
	Secret   []byte
	LastStep int64
	// Challenge is the challenge that is being answered; its ID is Nil if the factor has no such challenge.
	Challenge Challenge
}

var selectAttempt = define(`
select f.secret, f.last_step, c.id, c.factor_id, c.ip, c.otp_mac, c.misses, c.created_at, c.expires_at, c.verified_at
from {factors} f left join {challenges} c on c.id = $2 and c.factor_id = f.id
where f.id = $1`)

// Attempt reads a factor's secret and one of its challenges into dst.
func (b *Batch) Attempt(dst *Attempt, factor, challenge uuid.UUID) {
	c := &dst.Challenge
	b.row("attempt", dst, []any{&dst.Secret, &dst.LastStep, &c.ID, &c.Factor, &c.IP, &c.OTPMAC, &c.Misses,
		&c.CreatedAt, &c.ExpiresAt, &c.VerifiedAt}, selectAttempt, factor, challenge)
}

var missChallenge = define(`
update {challenges} set misses = misses + 1 where id = $1`)

// MissChallenge counts a wrong answer to a challenge.
func (b *Batch) MissChallenge(challenge uuid.UUID) {
	b.exec("miss challenge", missChallenge, challenge)
}

var useChallenge = define(`
update {challenges} set verified_at = $2 where id = $1`)

// UseChallenge records that the right answer to a challenge was given.
func (b *Batch) UseChallenge(challenge uuid.UUID, now time.Time) {
	b.exec("use challenge", useChallenge, challenge, now)
}

var deleteChallenge = define(`
delete from {challenges} where id = $1`)

// DeleteChallenge deletes a challenge.
func (b *Batch) DeleteChallenge(challenge uuid.UUID) {
	b.exec("delete challenge", deleteChallenge, challenge)
}

var deleteChallenges = define(`
delete from {challenges} where factor_id in (select id from {factors} where user_id = $1)`)

// DeleteChallenges deletes all challenges of a user, so that codes that were sent become invalid.
func (b *Batch) DeleteChallenges(user uuid.UUID) { b.exec("delete challenges", deleteChallenges, user) }
