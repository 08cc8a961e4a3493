#include "linalg/factor.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "linalg/blas.h"

// LAPACK's own interface, column-major. A row-major matrix is the column-major one of its transpose, so nothing is
// copied to turn it. Lengths of character arguments follow the others, as Fortran compilers pass them.
extern "C" {
void sgesdd_(const char* jobz, const int* m, const int* n, float* a, const int* lda, float* s, float* u, const int* ldu,
             float* vt, const int* ldvt, float* work, const int* lwork, int* iwork, int* info, size_t jobz_length);
void sgelqf_(const int* m, const int* n, float* a, const int* lda, float* tau, float* work, const int* lwork,
             int* info);
void sorglq_(const int* m, const int* n, const int* k, float* a, const int* lda, const float* tau, float* work,
             const int* lwork, int* info);
void spotrf_(const char* uplo, const int* n, float* a, const int* lda, int* info, size_t uplo_length);
void dsyevd_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w, double* work,
             const int* lwork, int* iwork, const int* liwork, int* info, size_t jobz_length, size_t uplo_length);
}

namespace df::linalg {
namespace {

constexpr size_t kMaxEigenSize = 30000;  // syevd's workspace of 2 n^2 + 6 n + 1 elements is counted in 32 bits

template <typename T>
Status CheckMatrix(MatView<const T> a, std::string_view what) {
  const std::string size = std::to_string(a.rows) + " x " + std::to_string(a.cols);
  if (a.rows == 0 || a.cols == 0) return InvalidArgument(std::string(what) + " of an empty matrix (" + size + ")");
  if (a.rows > kMaxDimension || a.stride > kMaxDimension) {
    return Unsupported(std::string(what) + " of a " + size + " matrix: LAPACK takes at most 2147483647");
  }
  for (size_t row = 0; row < a.rows; ++row) {
    for (size_t col = 0; col < a.cols; ++col) {
      if (std::isfinite(a.Row(row)[col])) continue;
      return InvalidArgument(std::string(what) + " of a matrix that is not finite at row " + std::to_string(row) +
                             ", column " + std::to_string(col));
    }
  }
  return Status::Ok();
}

Status FromInfo(std::string_view routine, int info) {
  if (info == 0) return Status::Ok();
  return Internal("LAPACK's " + std::string(routine) + " ended with code " + std::to_string(info));
}

// A workspace whose best size the routine was asked for; f32 counts above 2^24 may have been rounded down.
template <typename T>
std::vector<T> Workspace(T size) {
  return std::vector<T>(static_cast<size_t>(static_cast<double>(size) * (1 + 1e-6)) + 1);
}

}  // namespace

Result<Svd> ExactSvd(MatView<const float> a) {
  DF_RETURN_IF_ERROR(CheckMatrix(a, "singular values"));
  HoldBlasToOneThread();
  const size_t k = std::min(a.rows, a.cols);
  Mat<float> copy(a.rows, a.cols);  // gesdd destroys it
  for (size_t row = 0; row < a.rows; ++row) std::copy_n(a.Row(row), a.cols, copy.Row(row));
  Svd svd{Mat<float>(a.rows, k), Buffer<float>(k), Mat<float>(k, a.cols)};
  // To LAPACK this is a^T [n, m] = v s u^T: its left factor [n, k] is vt in rows, its right one [k, m] is u in rows.
  const int m = BlasInt(a.cols), n = BlasInt(a.rows), rank = BlasInt(k);
  std::vector<int> iwork(8 * k);
  int info = 0, ask = -1;
  float best = 0;
  sgesdd_("S", &m, &n, copy.Row(0), &m, svd.s.data(), svd.vt.Row(0), &m, svd.u.Row(0), &rank, &best, &ask, iwork.data(),
          &info, 1);
  DF_RETURN_IF_ERROR(FromInfo("gesdd", info));
  std::vector<float> work = Workspace(best);
  const int n_work = BlasInt(std::min(work.size(), kMaxDimension));
  sgesdd_("S", &m, &n, copy.Row(0), &m, svd.s.data(), svd.vt.Row(0), &m, svd.u.Row(0), &rank, work.data(), &n_work,
          iwork.data(), &info, 1);
  DF_RETURN_IF_ERROR(FromInfo("gesdd", info));
  return svd;
}

Status OrthonormalizeColumns(MatView<float> a) {
  DF_RETURN_IF_ERROR(CheckMatrix(MatView<const float>(a), "orthonormal columns"));
  DF_CHECK(a.cols <= a.rows);
  HoldBlasToOneThread();
  // To LAPACK this is a^T [k, m] = L Q^T, whose Q^T has orthonormal rows: ours are the columns.
  const int k = BlasInt(a.cols), m = BlasInt(a.rows), stride = BlasInt(a.stride);
  std::vector<float> tau(a.cols);
  int info = 0, ask = -1;
  float best_factor = 0, best_form = 0;
  sgelqf_(&k, &m, a.data, &stride, tau.data(), &best_factor, &ask, &info);
  DF_RETURN_IF_ERROR(FromInfo("gelqf", info));
  sorglq_(&k, &m, &k, a.data, &stride, tau.data(), &best_form, &ask, &info);
  DF_RETURN_IF_ERROR(FromInfo("orglq", info));
  std::vector<float> work = Workspace(std::max(best_factor, best_form));
  const int n_work = BlasInt(work.size());
  sgelqf_(&k, &m, a.data, &stride, tau.data(), work.data(), &n_work, &info);
  DF_RETURN_IF_ERROR(FromInfo("gelqf", info));
  sorglq_(&k, &m, &k, a.data, &stride, tau.data(), work.data(), &n_work, &info);
  return FromInfo("orglq", info);
}

Status Cholesky(MatView<float> a) {
  DF_CHECK(a.rows == a.cols);
  DF_RETURN_IF_ERROR(CheckMatrix(MatView<const float>(a), "a Cholesky factor"));
  HoldBlasToOneThread();
  // L in rows is LAPACK's upper factor L^T in columns.
  const int n = BlasInt(a.rows), stride = BlasInt(a.stride);
  int info = 0;
  spotrf_("U", &n, a.data, &stride, &info, 1);
  if (info > 0) {
    return InvalidArgument("a Cholesky factor of a matrix that is not positive definite at row " +
                           std::to_string(info - 1));
  }
  DF_RETURN_IF_ERROR(FromInfo("potrf", info));
  for (size_t row = 0; row < a.rows; ++row) std::fill(a.Row(row) + row + 1, a.Row(row) + a.cols, 0.0F);
  return Status::Ok();
}

void SolveTransposedLower(MatView<const float> lower, MatView<float> b) {
  DF_CHECK(lower.rows == lower.cols && b.cols == lower.rows);
  if (b.rows == 0 || b.cols == 0) return;
  HoldBlasToOneThread();
  cblas_strsm(CblasRowMajor, CblasRight, CblasLower, CblasTrans, CblasNonUnit, BlasInt(b.rows), BlasInt(b.cols), 1.0F,
              lower.data, BlasInt(lower.stride), b.data, BlasInt(b.stride));
}

void SolveLower(MatView<const float> lower, MatView<float> b) {
  DF_CHECK(lower.rows == lower.cols && b.cols == lower.rows);
  if (b.rows == 0 || b.cols == 0) return;
  HoldBlasToOneThread();
  cblas_strsm(CblasRowMajor, CblasRight, CblasLower, CblasNoTrans, CblasNonUnit, BlasInt(b.rows), BlasInt(b.cols), 1.0F,
              lower.data, BlasInt(lower.stride), b.data, BlasInt(b.stride));
}

Result<SymmetricEigen> EigenOfSymmetric(MatView<const double> a, EigenPart part) {
  DF_CHECK(a.rows == a.cols);
  if (a.rows > kMaxEigenSize) {
    return Unsupported("eigenvalues of a matrix of " + std::to_string(a.rows) + " rows: LAPACK takes at most " +
                       std::to_string(kMaxEigenSize));
  }
  DF_RETURN_IF_ERROR(CheckMatrix(a, "eigenvalues"));
  HoldBlasToOneThread();
  const bool with_vectors = part == EigenPart::kVectors;
  SymmetricEigen eigen{Buffer<double>(a.rows), Mat<double>(a.rows, a.rows)};
  for (size_t row = 0; row < a.rows; ++row) std::copy_n(a.Row(row), a.cols, eigen.vectors.Row(row));
  // The upper triangle in rows is LAPACK's lower one in columns; its eigenvectors in columns are our rows.
  const char* job = with_vectors ? "V" : "N";
  const int n = BlasInt(a.rows);
  int info = 0, ask = -1, best_iwork = 0;
  double best = 0;
  dsyevd_(job, "L", &n, eigen.vectors.Row(0), &n, eigen.values.data(), &best, &ask, &best_iwork, &ask, &info, 1, 1);
  DF_RETURN_IF_ERROR(FromInfo("syevd", info));
  std::vector<double> work = Workspace(best);
  std::vector<int> iwork(static_cast<size_t>(std::max(1, best_iwork)));
  const int n_work = BlasInt(work.size()), n_iwork = BlasInt(iwork.size());
  dsyevd_(job, "L", &n, eigen.vectors.Row(0), &n, eigen.values.data(), work.data(), &n_work, iwork.data(), &n_iwork,
          &info, 1, 1);
  DF_RETURN_IF_ERROR(FromInfo("syevd", info));
  if (!with_vectors) eigen.vectors = {};
  return eigen;
}

}  // namespace df::linalg
