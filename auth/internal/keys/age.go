package keys

import (
	"time"

	"gatehouse/auth/internal/token"
)

// Age is how long the key that signs has been signing, by what was last read of the database. false: it
// is the operator's, who alone knows.
func (k *Keeper) Age() (time.Duration, bool) {
	s, rows := k.snapshot()
	set := k.live.Load()
	if set == nil || len(s.Given) > 0 || s.Algorithm == token.HS256 {
		return 0, false
	}
	for _, row := range rows {
		if row.KID == set.Signer().ID() {
			return k.now().Sub(row.SignsAt), true
		}
	}
	return 0, false
}
