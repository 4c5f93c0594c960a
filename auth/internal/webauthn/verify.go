package webauthn

import "bytes"

// Verify checks a registration (Level 3, section 7.1) and returns the credential to store. An error is a Failure.
func (r *Registration) Verify(p *Policy) (Credential, error) {
	if err := r.client.check("webauthn.create", p); err != nil {
		return Credential{}, err
	}
	if err := r.auth.check(p); err != nil {
		return Credential{}, err
	}
	if !bytes.Equal(r.id, r.auth.id) {
		return Credential{}, FailedCredentialID
	}
	if _, err := parseKey(r.auth.key); err != nil {
		return Credential{}, err
	}
	return Credential{
		ID: r.id, PublicKey: bytes.Clone(r.auth.key), AAGUID: r.auth.aaguid, SignCount: r.auth.count,
		Transports: r.transports, BackupEligible: r.auth.has(flagBE), BackedUp: r.auth.has(flagBS),
		UserVerified: r.auth.has(flagUV),
	}, nil
}

// CheckKey returns an error if signatures of the credential with this COSE_Key cannot be verified.
func CheckKey(cose []byte) error {
	_, err := parseKey(cose)
	return err
}

// Check makes the checks of an assertion that need no stored credential. An error is a Failure.
func (a *Assertion) Check(p *Policy) error {
	if err := a.client.check("webauthn.get", p); err != nil {
		return err
	}
	return a.auth.check(p)
}

// Verify checks an assertion against the stored credential that it names (Level 3, section 7.2); Check must have
// succeeded before. It returns the credential to store, with its present backup state, its counter if that is checked,
// and whether the authenticator has verified the user. An error is a Failure.
func (a *Assertion) Verify(c Credential) (Credential, error) {
	verify, err := parseKey(c.PublicKey)
	switch {
	case err != nil:
		return c, FailedKey
	case !bytes.Equal(a.ID, c.ID):
		return c, FailedCredentialID
	case a.auth.has(flagBE) != c.BackupEligible:
		return c, FailedBackupFlags
	case !verify(a.signed, a.signature):
		return c, FailedSignature
	}
	// The devices of a synced passkey share the key but count separately, so the counter is checked only for a
	// credential that is bound to one device.
	if !c.BackupEligible {
		if a.auth.count <= c.SignCount && (a.auth.count != 0 || c.SignCount != 0) {
			return c, FailedSignCount
		}
		c.SignCount = a.auth.count
	}
	c.BackedUp, c.UserVerified = a.auth.has(flagBS), a.auth.has(flagUV)
	return c, nil
}
