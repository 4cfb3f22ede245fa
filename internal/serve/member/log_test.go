package member

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// A collector of logs that parses the lines of serve must also read those of etcd inside it. A removed node must not fill the log.
func TestEtcdLogsInTheFormOfServe(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	cfg := embed.NewConfig()
	EtcdConfig{Log: slog.NewTextHandler(&out, nil)}.log(cfg)
	if err := cfg.ZapLoggerBuilder(cfg); err != nil {
		t.Fatal(err)
	}
	log := cfg.GetLogger().With(zap.String("member", "m1"))
	log.Warn("slow")
	log.Error("failed to update storage version", zap.Error(errors.New("missing term information")))
	log.Error("cannot find a user", zap.String("user-name", "pulley/node/dev/web1/1"), zap.Error(errors.New("not found")))
	log.Error("cannot find a user", zap.String("user-name", "pulley/node/dev/web1/1"), zap.Error(errors.New("not found")))
	want := `level=ERROR msg="etcd reports an error" etcd="cannot find a user" error="not found" member=m1 user-name=pulley/node/dev/web1/1` + "\n"
	if got := out.String(); !strings.HasPrefix(got, "time=") || !strings.HasSuffix(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("%q, want %q", got, want)
	}
}
