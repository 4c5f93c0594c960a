package password

import (
	"context"
	"strings"
	"testing"

	"gatehouse/shared/must"
)

// Vectors: crypt_blowfish, the argon2 reference implementation, Firebase's scrypt, passlib.
const (
	bcryptVector   = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
	argonVector    = "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4"
	firebaseVector = "$fbscrypt$v=1,n=14,r=8,p=1,ss=Bw==,sk=jxspr8Ki0RYycVU8zykbdLGjFQ3McFUH0uiiTvC8pVMXAn210wjLNmdZJzxUECKbm0QsEmYUSDzZvpjeJ9WmXA==$42xEC+ixf3L2lw==$lSrfV15cpx95/sZS2W9c9Kp6i/LVgQNDNC/qzrCnh1SAyZvqmZqAjTdn3aoItz+VHjoZilo78198JAdRuid5lQ=="
	pbkdf2Vector   = "$pbkdf2-sha256$1212$4vjV83LKPjQzk31VI4E0Vw$hsYF68OiOUPdDZ1Fg.fJPeq1h/gXXY7acBp9/6c.tmQ"
)

func TestVectors(t *testing.T) {
	f := func(hash, password string) {
		t.Helper()
		h, err := parse(hash)
		if err != nil {
			t.Fatalf("%s: %v", hash, err)
		}
		for _, try := range []string{password, password + "x", ""} {
			ok, err := h.check([]byte(try))
			if err != nil || ok != (try == password) {
				t.Errorf("%s with %q: %v, %v", hash, try, ok, err)
			}
		}
	}
	f(bcryptVector, "U*U")
	f("$2b$05$XXXXXXXXXXXXXXXXXXXXXOAcXxm9kjPGEMsLznoKqmqw7tc8WCx4a", "U*U*U")
	f("$2y$05$CCCCCCCCCCCCCCCCCCCCC.VGOzA784oUp/Z0DY336zx7pLYAy0lwK", "U*U*")
	f(argonVector, "password")
	f("$argon2id$v=19$m=256,t=2,p=2$c29tZXNhbHQ$bQk8UB/VmZZF4Oo79iDXuL5/0ttZwg2f/5U52iv1cDc", "password")
	f("$argon2i$v=19$m=256,t=2,p=1$c29tZXNhbHQ$iekCn0Y3spW+sCcFanM2xBT63UP2sghkUoHLIUpWRS8", "password")
	f(firebaseVector, "user1password")
	f(pbkdf2Vector, "password")
	f("$pbkdf2-sha512$1212$RHY0Fr3IDMSVO/RSZyb5ow$eNLfBK.eVozomMr.1gYa17k9B7KIK25NOEshvhrSX.esqY3s.FvWZViXz4KoLlQI.BzY/YTNJOiKc5gBYFYGww", "password")
}

func TestHashOf(t *testing.T) {
	f := func(setting, prefix string) {
		t.Helper()
		p, err := ParseParams(setting)
		must.Succeed(t, err)
		hash, err := p.hash([]byte("correct horse"))
		if err != nil || !strings.HasPrefix(hash, prefix) {
			t.Fatalf("%s makes %s, %v", setting, hash, err)
		}
		if err := ValidImport(hash); err != nil || needsRehash(p, hash) {
			t.Errorf("%s: valid %v, needs rehash %v", setting, err, needsRehash(p, hash))
		}
		h, _ := parse(hash)
		if ok, err := h.check([]byte("correct horse")); !ok || err != nil {
			t.Errorf("%s: own hash refused, %v", setting, err)
		}
		if ok, _ := h.check([]byte("Correct horse")); ok {
			t.Errorf("%s: wrong password accepted", setting)
		}
		dummy, err := parse(p.dummy())
		if err != nil || !dummy.madeBy(p) {
			t.Fatalf("%s: dummy %s: %v", setting, p.dummy(), err)
		}
		if ok, err := dummy.check([]byte("correct horse")); ok || err != nil {
			t.Errorf("%s: dummy accepts, %v", setting, err)
		}
		if other := p.dummy(); len(other) != len(hash) || other == p.dummy() {
			t.Errorf("%s: dummy %s, hash %s", setting, p.dummy(), hash)
		}
		if _, err := p.hash([]byte(strings.Repeat("ä", 36) + "x")); err != ErrTooLong {
			t.Errorf("%s: 73 bytes: %v", setting, err)
		}
	}
	f("bcrypt:4", "$2a$04$")
	f("argon2id:64,1,2", "$argon2id$v=19$m=64,t=1,p=2$")
	f("argon2id:19456,2,1", "$argon2id$v=19$m=19456,t=2,p=1$")
}

func TestDefaultIsBcrypt10(t *testing.T) {
	for _, setting := range []string{"", "bcrypt"} {
		p, err := ParseParams(setting)
		if err != nil || p.String() != "bcrypt:10" || !strings.HasPrefix(p.dummy(), "$2a$10$") {
			t.Errorf("%q is %s, %v", setting, p, err)
		}
	}
	w := NewWorkers(Options{Workers: 1})
	defer w.Close()
	hash, err := w.Hash(context.Background(), "correct horse")
	if err != nil || !strings.HasPrefix(hash, "$2a$10$") {
		t.Fatal(hash, err)
	}
	if ok, rehash, err := w.Check(context.Background(), hash, "correct horse"); !ok || rehash || err != nil {
		t.Error(ok, rehash, err)
	}
}

func TestBcrypt72Bytes(t *testing.T) {
	long := strings.Repeat("0123456789", 8)
	p := Params{cost: 4}
	hash, err := p.hash([]byte(long[:72]))
	must.Succeed(t, err)
	h, _ := parse(hash)
	f := func(password string, want bool) {
		t.Helper()
		if ok, err := h.check([]byte(password)); ok != want || err != nil {
			t.Errorf("%d bytes: %v, %v", len(password), ok, err)
		}
	}
	f(long[:72], true)
	f(long[:71], false)
	f(long[:73], false) // bcrypt alone would say true
	f(long, false)
}

func TestParseParams(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		p, err := ParseParams(text)
		if want == "" {
			if err == nil {
				t.Errorf("%q became %s", text, p)
			}
		} else if err != nil || p.String() != want {
			t.Errorf("%q is %s, %v; want %s", text, p, err, want)
		}
	}
	f("bcrypt:4", "bcrypt:4")
	f("bcrypt:15", "bcrypt:15")
	f("argon2id", "argon2id:19456,2,1")
	f("argon2id:262144,20,16", "argon2id:262144,20,16")
	for _, bad := range []string{"bcrypt:", "bcrypt:3", "bcrypt:16", "bcrypt:+9", "bcrypt:010", "bcrypt:10,1",
		"argon2id:", "argon2id:19456", "argon2id:19456,2",
		"argon2id:262145,2,1", "argon2id:19456,0,1", "argon2id:19456,21,1", "argon2id:19456,2,0", "argon2id:19456,2,17",
		"argon2id:15,1,2", "argon2i:1,1,1",
		"scrypt", "Bcrypt:10", " bcrypt:10", "argon2id:19456,2,1,1"} {
		f(bad, "")
	}
}

func TestNeedsRehash(t *testing.T) {
	f := func(setting, hash string, want bool) {
		t.Helper()
		p, err := ParseParams(setting)
		must.Succeed(t, err)
		if have := needsRehash(p, hash); have != want {
			t.Errorf("%s, %s: %v, want %v", setting, hash, have, want)
		}
	}
	f("bcrypt:5", bcryptVector, false)
	f("bcrypt:4", bcryptVector, true)
	f("bcrypt:10", bcryptVector, true)
	f("bcrypt:10", argonVector, true)
	f("bcrypt:10", firebaseVector, true)
	f("bcrypt:10", pbkdf2Vector, true)
	f("argon2id:256,2,1", argonVector, true) // its salt has only 8 bytes
	f("argon2id:256,2,1", bcryptVector, true)
	f("argon2id:256,2,1", Params{argon: true, memory: 256, time: 2, threads: 1}.dummy(), false)
	f("argon2id:256,2,2", Params{argon: true, memory: 256, time: 2, threads: 1}.dummy(), true)
	f("bcrypt:10", "nonsense", false)
}

// needsRehash reports whether a hash was made with other parameters than p. A hash that cannot be parsed needs no
// rehash: no password can be checked against it either.
func needsRehash(p Params, hash string) bool {
	h, err := parse(hash)
	return err == nil && !h.madeBy(p)
}
