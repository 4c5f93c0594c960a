package former

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Credential is a WebAuthn credential, which an authenticator has made for a user: that of a security key, or a
// passkey.
type Credential struct {
	// PublicKey is a COSE_Key, as the authenticator has sent it.
	ID, PublicKey            []byte
	AAGUID                   uuid.UUID // Nil if there is none
	SignCount                int64
	Transports               []byte // a JSON list of texts, as the browser has sent it
	BackupEligible, BackedUp bool
}

// ParseCredential parses the JSON column that has the credential of a security key.
func ParseCredential(text string) (c Credential, err error) {
	var in struct {
		ID        []byte          `json:"id"`
		PublicKey []byte          `json:"publicKey"`
		Transport json.RawMessage `json:"transport"`
		Flags     struct {
			BackupEligible bool `json:"backupEligible"`
			BackupState    bool `json:"backupState"`
		} `json:"flags"`
		Authenticator struct {
			AAGUID    []byte `json:"AAGUID"`
			SignCount uint32 `json:"signCount"`
		} `json:"authenticator"`
	}
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return c, err
	}
	if aaguid := in.Authenticator.AAGUID; len(aaguid) > 0 {
		if c.AAGUID, err = uuid.FromBytes(aaguid); err != nil {
			return c, err
		}
	}
	c.ID, c.PublicKey, c.SignCount, c.Transports = in.ID, in.PublicKey, int64(in.Authenticator.SignCount), in.Transport
	c.BackupEligible, c.BackedUp = in.Flags.BackupEligible, in.Flags.BackupState
	return c, nil
}

// Passkey is a row of webauthn_credentials. Reason is why it is not copied; "" if it is.
type Passkey struct {
	Credential
	RowID, UserID         uuid.UUID
	Name                  string
	CreatedAt, LastUsedAt time.Time
	Reason                string
}

const passkeyReason = `case ` + ownedReason + ` else '' end`

const selectPasskeys = `
select p.id, p.user_id, p.credential_id, p.public_key, p.aaguid, coalesce(p.sign_count, 0), p.transports::text,
    coalesce(p.backup_eligible, false), coalesce(p.backed_up, false), p.friendly_name, p.created_at, p.last_used_at,
    ` + passkeyReason + `
from {P} p join {S}.users u on u.id = p.user_id
where `

// noPasskeys replaces the table webauthn_credentials in queries, in versions of the schema that lack it.
const noPasskeys = `(select null::uuid as id, null::uuid as user_id, ''::bytea as credential_id, ''::bytea as public_key,
    null::uuid as aaguid, 0::bigint as sign_count, '[]'::jsonb as transports, false as backup_eligible, false as backed_up,
    '' as friendly_name, now() as created_at, now() as last_used_at where false)`

const passkeyEntries = `
select p.id, p.user_id, ` + passkeyReason + `, {changed p}, 0
from {P} p join {S}.users u on u.id = p.user_id`

func passkeyTargets(p *Passkey) []any {
	return []any{uid(&p.RowID), uid(&p.UserID), &p.ID, &p.PublicKey, uid(&p.AAGUID), &p.SignCount, raw(&p.Transports),
		&p.BackupEligible, &p.BackedUp, str(&p.Name), at(&p.CreatedAt), at(&p.LastUsedAt), &p.Reason}
}

// Passkeys reads the passkeys that w selects.
func (s *Source) Passkeys(ctx context.Context, w Select, each func(*Passkey) error) error {
	where, args := w.where("p")
	return s.batch(ctx, selectPasskeys+where, into(each, passkeyTargets), args...)
}

// EachPasskey reads all passkeys that may be copied.
func (s *Source) EachPasskey(ctx context.Context, each func(*Passkey) error) error {
	return s.rows(ctx, selectPasskeys+passkeyReason+" = '' order by p.id", into(each, passkeyTargets))
}
