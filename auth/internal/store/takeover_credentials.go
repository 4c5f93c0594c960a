package store

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// CarriedCredential is what an authenticator made for a user of the other service.
type CarriedCredential struct {
	ID, UserID uuid.UUID
	// FactorID is the security key's factor; Nil: a passkey.
	FactorID                 uuid.UUID
	CredentialID, PublicKey  []byte
	AAGUID                   uuid.UUID // Nil: none
	SignCount                int64
	Transports               []string
	BackupEligible, BackedUp bool
	FriendlyName             string
	CreatedAt, LastUsedAt    time.Time
}

var carriedCredential = strings.Fields(`id user_id factor_id credential_id public_key aaguid sign_count transports
	backup_eligible backed_up friendly_name created_at last_used_at`)

var stageCredentials = stage("carried_credentials", "webauthn_credentials", carriedCredential)

var insertCarriedCredentials = define(`
insert into {webauthn_credentials} (` + columns("", carriedCredential) + `)
select ` + columns("c.", carriedCredential) + `
from carried_credentials c join {users} u on u.id = c.user_id left join {factors} f on f.id = c.factor_id
where c.factor_id is null or f.id is not null
on conflict do nothing`)

// Credentials writes credentials whose users, and factors, exist. Changed credentials were deleted before.
func (c *Carrier) Credentials(ctx context.Context, list []CarriedCredential) (w Written, err error) {
	w.Added, err = c.insertRows(ctx, insertCarriedCredentials, stageCredentials, len(list), func(i int) []any {
		v := &list[i]
		transports := v.Transports
		if transports == nil {
			transports = []string{}
		}
		return []any{v.ID, v.UserID, uuidOrNull(v.FactorID), v.CredentialID, v.PublicKey, uuidOrNull(v.AAGUID), v.SignCount,
			transports, v.BackupEligible, v.BackedUp, v.FriendlyName, v.CreatedAt, timeOrNull(v.LastUsedAt)}
	})
	return w, err
}

var selectCarriedCredentials = define(`
select ` + columns("w.", carriedCredential) + ` from {webauthn_credentials} w where w.user_id = any($1)`)

// CarriedCredentials reads the credentials of users: the passkeys in a list, the credentials of security keys by
// factor.
func (db *DB) CarriedCredentials(ctx context.Context,
	users []uuid.UUID) (passkeys []CarriedCredential, byFactor map[uuid.UUID]*CarriedCredential, err error) {
	byFactor = map[uuid.UUID]*CarriedCredential{}
	err = db.readOnly(ctx, selectCarriedCredentials, func(r pgx.Rows) error {
		v := new(CarriedCredential)
		err := r.Scan((*nullUUID)(&v.ID), (*nullUUID)(&v.UserID), (*nullUUID)(&v.FactorID), &v.CredentialID, &v.PublicKey,
			(*nullUUID)(&v.AAGUID), &v.SignCount, &v.Transports, &v.BackupEligible, &v.BackedUp, &v.FriendlyName,
			(*nullTime)(&v.CreatedAt), (*nullTime)(&v.LastUsedAt))
		if v.FactorID != uuid.Nil {
			byFactor[v.FactorID] = v
		} else {
			passkeys = append(passkeys, *v)
		}
		return err
	}, users)
	return passkeys, byFactor, err
}
