package keys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// ErrGiven is the error of Rotate and Revoke if the operator has set the signing keys in AUTH_JWT_KEYS. Such keys are
// rotated and revoked by changing that setting.
var ErrGiven = errors.New("keys: AUTH_JWT_KEYS holds the keys; change them there")

// ErrSecret is the error of Rotate if JWT_SECRET signs the tokens, so that there is no key to rotate.
var ErrSecret = errors.New("keys: with AUTH_JWT_ALGORITHM=HS256 JWT_SECRET signs; there is nothing to rotate")

// ErrNoKey is the error of Revoke for a key that does not exist or is revoked already.
var ErrNoKey = errors.New("keys: no such key")

// Listed is a signing key as the command "auth keys list" prints it.
type Listed struct {
	KID, Algorithm string
	// State is next, current, previous, revoked, or expired. A key is expired when all tokens that it has signed have
	// expired.
	State                         string
	CreatedAt, SignsAt, RevokedAt time.Time // zero for the keys of AUTH_JWT_KEYS
}

func listed(row store.SigningKey, state string) Listed {
	return Listed{KID: row.KID, Algorithm: row.Algorithm, State: state, CreatedAt: row.CreatedAt, SignsAt: row.SignsAt,
		RevokedAt: row.RevokedAt}
}

// List reads the signing keys from the database and returns them all, the key with the latest SignsAt first. If
// AUTH_JWT_KEYS has keys, it returns those instead. It does not decrypt the private keys.
func (k *Keeper) List(ctx context.Context) ([]Listed, error) {
	if err := k.read(ctx); err != nil {
		return nil, err
	}
	s, rows := k.snapshot()
	var out []Listed
	for _, e := range s.Given {
		out = append(out, Listed{KID: e.Key.ID(), Algorithm: e.Key.Algorithm().String(), State: e.State.String()})
	}
	if len(out) > 0 {
		return out, nil
	}
	states := k.states(s, rows)
	for _, row := range rows {
		l := listed(row, "expired")
		if state := states[row.KID]; state != 0 {
			l.State = state.String()
		}
		if s.Algorithm == token.HS256 && (l.State == token.Current.String() || l.State == token.Next.String()) {
			l.State = token.Previous.String()
		}
		out = append(out, l)
	}
	return out, nil
}

// states returns the state of each key by its id. It derives the states from the keys' times alone. Expired keys are
// missing in the map.
func (k *Keeper) states(s Settings, rows []store.SigningKey) map[string]token.State {
	var stored []token.Stored
	for _, row := range rows {
		stored = append(stored, token.Stored{Key: token.RevokedKey(row.KID), SignsAt: row.SignsAt,
			RevokedAt: row.RevokedAt})
	}
	out := map[string]token.State{}
	entries, err := token.StatesAt(stored, k.at(), s.AccessLife+margin)
	for _, e := range entries {
		out[e.Key.ID()] = e.State
	}
	if err != nil { // all keys are revoked, or there are none
		for _, row := range rows {
			out[row.KID] = token.Revoked
		}
	}
	return out
}

// Rotate makes a key of the configured algorithm and publishes its public half at once. The new key begins to sign
// after 20 minutes, when all caches of the published keys have it, or at once if there is no current key. Rotate also
// deletes keys that no longer verify any token. It fails if another new key is still waiting to sign.
func (k *Keeper) Rotate(ctx context.Context) (Listed, error) {
	s, rows, err := k.changeable(ctx)
	if err != nil {
		return Listed{}, err
	}
	if s.Algorithm == token.HS256 {
		return Listed{}, ErrSecret
	}
	states := k.states(s, rows)
	signsAt := k.at()
	for _, row := range rows {
		switch states[row.KID] {
		case token.Next:
			return Listed{}, fmt.Errorf("keys: key %q is published already and signs from %s", row.KID,
				row.SignsAt.UTC().Format(time.RFC3339))
		case token.Current:
			signsAt = k.at().Add(token.PublishAhead)
		}
	}
	fresh, err := k.generate(s.Algorithm, signsAt)
	if err != nil {
		return Listed{}, err
	}
	batch := k.DB.Batch()
	batch.InsertSigningKey(fresh)
	batch.Audit(k.note(store.ActionKeyRotated, fresh.KID))
	if err := batch.Send(ctx); err != nil {
		return Listed{}, fmt.Errorf("keys: rotate: %w", err)
	}
	for _, row := range rows {
		if states[row.KID] == 0 {
			if err := k.DB.DeleteSigningKey(ctx, row.KID); err != nil {
				return Listed{}, fmt.Errorf("keys: remove expired key: %w", err)
			}
		}
	}
	state := token.Next
	if !signsAt.After(k.at()) {
		state = token.Current
	}
	return listed(fresh, state.String()), nil
}

// Revoke revokes a key: within ten seconds every replica refuses the tokens that the key has signed. If it is the
// current key, a new key signs at once; clients that cache the published keys do not have the new key yet and may
// refuse its tokens for up to 20 minutes. fresh is the new key, or nil.
func (k *Keeper) Revoke(ctx context.Context, kid string) (fresh *Listed, err error) {
	s, rows, err := k.changeable(ctx)
	if err != nil {
		return nil, err
	}
	state := k.states(s, rows)[kid]
	found := false
	for _, row := range rows {
		found = found || row.KID == kid && row.RevokedAt.IsZero()
	}
	if !found {
		return nil, fmt.Errorf("%w: %q", ErrNoKey, kid)
	}
	batch := k.DB.Batch()
	batch.RevokeSigningKey(kid, k.at())
	if state == token.Current && s.Algorithm != token.HS256 {
		row, err := k.generate(s.Algorithm, k.at())
		if err != nil {
			return nil, err
		}
		batch.InsertSigningKey(row)
		fresh = new(listed(row, token.Current.String()))
	}
	batch.Audit(k.note(store.ActionKeyRevoked, kid))
	if err := batch.Send(ctx); err != nil {
		return nil, fmt.Errorf("keys: revoke: %w", err)
	}
	return fresh, nil
}

// changeable reads the keys from the database for a command that changes them. It returns ErrGiven if the operator has
// set the keys in AUTH_JWT_KEYS.
func (k *Keeper) changeable(ctx context.Context) (Settings, []store.SigningKey, error) {
	s, _ := k.snapshot()
	if len(s.Given) > 0 {
		return s, nil, ErrGiven
	}
	if err := k.read(ctx); err != nil {
		return s, nil, err
	}
	_, rows := k.snapshot()
	return s, rows, nil
}

// note returns the audit row for a change of a key. The row has no user as the actor, since only the operator can run
// the commands.
func (k *Keeper) note(action store.Action, kid string) store.Audit {
	traits, _ := json.Marshal(map[string]string{"kid": kid}) // a string is always JSON
	return store.Audit{At: k.at(), Action: action, ActorRole: "auth keys", Traits: traits}
}
