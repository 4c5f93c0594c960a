package takeover

import (
	"cmp"
	"context"
	"math"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/webauthn"
)

// maxCredentialID is the greatest length of a credential's id in bytes.
const maxCredentialID = 1023

// readable reports whether this program can use a WebAuthn credential.
func readable(c *former.Credential) bool {
	return len(c.ID) > 0 && len(c.ID) <= maxCredentialID && c.SignCount >= 0 && c.SignCount <= math.MaxUint32 &&
		webauthn.CheckKey(c.PublicKey) == nil
}

// credential converts a WebAuthn credential of the source. row is the id of the row to write; for a security key, that
// is the id of its factor.
func credential(row, user uuid.UUID, c *former.Credential) store.Credential {
	return store.Credential{ID: row, User: user, Key: webauthn.Credential{
		ID: c.ID, PublicKey: c.PublicKey, AAGUID: c.AAGUID, SignCount: uint32(c.SignCount),
		Transports:     webauthn.KnownTransports(c.Transports),
		BackupEligible: c.BackupEligible, BackedUp: c.BackedUp,
	}}
}

// securityKey converts the WebAuthn credential of a factor. It returns nil if the credential cannot be read.
func securityKey(f *former.Factor) *store.Credential {
	parsed, err := former.ParseCredential(f.Credential)
	if err != nil || !readable(&parsed) {
		return nil
	}
	c := credential(f.ID, f.UserID, &parsed)
	c.Factor = f.ID
	return &c
}

func (m *mapper) passkey(p *former.Passkey) store.Credential {
	c := credential(p.RowID, p.UserID, &p.Credential)
	c.FriendlyName, c.LastUsedAt = p.Name, p.LastUsedAt
	c.CreatedAt = cmp.Or(p.CreatedAt, m.begun)
	return c
}

// securityKeys collects what the check before a run finds out about the source's verified security keys.
type securityKeys struct {
	good   int
	broken []uuid.UUID
	seen   map[string]bool // the ids of credentials found so far
}

// add checks a security key. It returns the reason why the key is not copied, or "" if it is.
func (k *securityKeys) add(f *former.Factor) string {
	c := securityKey(f)
	switch {
	case c == nil:
		k.broken = append(k.broken, f.ID)
		return "webauthn"
	case k.seen[string(c.Key.ID)]:
		return sameCredential
	}
	k.good++
	k.seen[string(c.Key.ID)] = true
	return ""
}

// sameCredential is the reason for leaving out a credential that has the same id as another one.
const sameCredential = "same credential"

// credentials refuses the run if security keys or passkeys cannot be read. For those that can be read it warns of
// settings that are missing for using them.
func (f *findings) credentials(ctx context.Context, keys *securityKeys) error {
	r := f.r
	var passkeys int
	var broken []uuid.UUID
	err := r.Source.EachPasskey(ctx, func(p *former.Passkey) error {
		switch {
		case !readable(&p.Credential):
			r.dropped[p.RowID] = "passkeys"
			broken = append(broken, p.RowID)
		case keys.seen[string(p.ID)]:
			r.dropped[p.RowID] = sameCredential
		default:
			passkeys++
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n := len(keys.broken); n > 0 {
		f.accept("webauthn", int64(n), "%d security keys are of a form that is not read here (first factor %s): their "+
			"owners would fall back to one factor", n, keys.broken[0])
	}
	if n := len(broken); n > 0 {
		f.accept("passkeys", int64(n), "%d passkeys are of a form that is not read here (first %s)", n, broken[0])
	}
	if !r.Settings.RelyingParty && keys.good+passkeys > 0 {
		f.warn("%d security keys and %d passkeys need AUTH_WEBAUTHN_RP_ID as it was there", keys.good, passkeys)
	}
	if !r.Settings.SecurityKeys && keys.good > 0 {
		f.warn("%d security keys, and AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED is false: their owners stay at aal1", keys.good)
	}
	return nil
}
