package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"pulley/internal/access/fleetca"
	"pulley/internal/etcd"
	"pulley/internal/model"
	"pulley/internal/pki"
)

// ExamineCA connects with a certificate of the CA in the data folder whose name no etcd user has: etcd must trust the CA,
// and must give the certificate no rights.
func ExamineCA(ctx context.Context, s *etcd.DB, c etcd.Config, dataDir, host string, now func() time.Time) (Finding, error) {
	if _, err := os.Stat(filepath.Join(dataDir, fleetca.PKIName, "ca.pem")); err != nil {
		return Finding{}, fmt.Errorf("cannot use the CA of %s: %w", dataDir, err)
	}
	certs, err := fleetca.Open(dataDir, c.Prefix, host, false, pki.Options{Now: now})
	if err != nil {
		return Finding{}, err
	}
	f := Finding{Check: "ca", Code: caFine, Severity: Fine, Params: Params{Subject: dataDir}}
	if err := certs.MayJoin(ctx, s, c); err != nil {
		f.Code, f.Severity, f.Params.Text = caJoinObstacle, Problem, model.Prose(err.Error())
		if join := (*fleetca.JoinError)(nil); errors.As(err, &join) {
			f.Params.Kind, f.Params.Hint = string(join.Obstacle), model.Prose(join.Hint())
		}
	}
	return f, nil
}
